"""Import a file of pipelines."""

from __future__ import annotations

import importlib.util
import os
import sys
import traceback
from pathlib import Path
from types import ModuleType
from typing import Final

from headrace.errors import ConfigError
from headrace.pipelines.declaration import Pipeline, collecting

MODULE: Final = "headrace_pipelines_file"


def load_file(path: Path) -> list[Pipeline]:
    """Import a file and return the pipelines that it declares, in order.

    As with `python FILE`, the file can import modules from its directory. Spark's Python workers on this machine can
    import them, too.

    Raises:
        ConfigError: The file does not exist, raises an exception, or declares no pipeline.
    """
    if not path.is_file():
        raise ConfigError(f"there is no file {path}")
    directory = str(path.absolute().parent)
    if directory not in sys.path:
        sys.path.insert(0, directory)
        paths = [directory, *filter(None, [os.environ.get("PYTHONPATH")])]
        os.environ["PYTHONPATH"] = os.pathsep.join(paths)
    spec = importlib.util.spec_from_file_location(MODULE, path.absolute())
    if spec is None or spec.loader is None:
        raise ConfigError(f"{path} is not a Python file: its name has to end in .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[MODULE] = module
    with collecting() as found:
        try:
            spec.loader.exec_module(module)
        except Exception as error:
            raise ConfigError(_failed(path, error)) from error
    if not found:
        raise ConfigError(f"{path} declares no pipeline: decorate a function with @pipeline(...)")
    _ship_by_value(module)
    return found


def _failed(path: Path, error: Exception) -> str:
    """Describe a failure with the line of the file."""
    if isinstance(error, SyntaxError):
        return f"{error.filename}:{error.lineno}: {error.msg}"
    lines = [
        frame.lineno
        for frame in traceback.extract_tb(error.__traceback__)
        if Path(frame.filename) == path.absolute()
    ]
    where = f"{path}:{lines[-1]}" if lines else str(path)
    return f"{where}: {type(error).__name__}: {error}{_remedy(error)}"


def _remedy(error: Exception) -> str:
    """Return the remedy if PySpark fails because there is no session yet; "" for other errors."""
    files = [frame.filename for frame in traceback.extract_tb(error.__traceback__)]
    without_session = isinstance(error, AssertionError) and "pyspark" in files[-1]
    if not without_session and "SESSION_OR_CONTEXT" not in str(error):
        return ""
    return (
        ". There is no Spark session while the file is loaded: give types as objects, @udf(IntegerType()) in place of "
        '@udf("int"), and make columns inside the functions of pipelines'
    )


def _ship_by_value(module: ModuleType) -> None:
    """Make Spark pickle the file's functions by value, because its workers cannot import the file by name."""
    try:
        from pyspark import cloudpickle
    except ImportError:
        return  # planning works without PySpark; running reports that it is missing
    cloudpickle.register_pickle_by_value(module)


def choose(found: list[Pipeline], names: tuple[str, ...]) -> list[Pipeline]:
    """Return the pipelines with these names, or all pipelines if there are no names.

    Raises:
        ConfigError: A name is unknown.
    """
    known = {each.name for each in found}
    for name in names:
        if name not in known:
            raise ConfigError(f"there is no pipeline {name}; there are {', '.join(sorted(known))}")
    return [each for each in found if not names or each.name in names]
