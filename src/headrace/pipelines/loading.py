"""A file of pipelines, imported."""

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
    """Import a file and return the pipelines that it declares, in their order.

    The file's directory is where it finds modules beside it, as with `python FILE`, and Spark's Python workers on this
    machine find them there, too.

    Raises:
        ConfigError: There is no such file, it fails, or it declares none.
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
    """Return what failed, and in which line of the file."""
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
    """Return what to do about an error of PySpark that does not say it: a file is loaded before Spark is started."""
    places = [frame.filename for frame in traceback.extract_tb(error.__traceback__)]
    without_session = isinstance(error, AssertionError) and "pyspark" in places[-1]
    if not without_session and "SESSION_OR_CONTEXT" not in str(error):
        return ""
    return (
        ". There is no Spark session while the file is loaded: give types as objects, @udf(IntegerType()) in place of "
        '@udf("int"), and make columns inside the functions of pipelines'
    )


def _ship_by_value(module: ModuleType) -> None:
    """Have the file's functions sent to Spark's workers whole: they could not import it by a name."""
    try:
        from pyspark import cloudpickle
    except ImportError:
        return  # planning works without it; running says what is missing
    cloudpickle.register_pickle_by_value(module)


def choose(found: list[Pipeline], names: tuple[str, ...]) -> list[Pipeline]:
    """Return the pipelines of those names, or all where none is given.

    Raises:
        ConfigError: There is none of a name.
    """
    known = {each.name for each in found}
    for name in names:
        if name not in known:
            raise ConfigError(f"there is no pipeline {name}; there are {', '.join(sorted(known))}")
    return [each for each in found if not names or each.name in names]
