"""Checks of everything that Spark needs on this machine. Each check reports what it found and how to repair it."""

from __future__ import annotations

import importlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pkgutil import iter_modules
from typing import Any, Final

from headrace import __version__
from headrace.errors import ConfigError, HeadraceError
from headrace.findings import Finding
from headrace.spark.java import MINIMUM, check_java
from headrace.spark.versions import (
    CONNECTOR,
    FIRST_UNKNOWN_PYSPARK,
    INSTALL,
    MINIMUM_PYARROW,
    MINIMUM_PYSPARK,
    connector_coordinates,
    installed,
    jars,
    numbers,
    spark_home,
    spark_version,
)

FORMAT: Final = "headrace"
EXTRAS: Final = {
    "avro": ("fastavro",),
    "protobuf": ("protobuf",),
    "archive": ("deltalake", "pyiceberg"),
}
_PREFIX: Final = "pyspark_"
_PYTHON_TIMEOUT_S: Final = 60
_DEFAULT_PYTHON: Final = "python3"
"""The command that PySpark starts from PATH if PYSPARK_PYTHON is not set."""
_PROGRAM: Final = "import sys, headrace, pyspark, pyarrow; print('%d.%d' % sys.version_info[:2], headrace.__version__)"


class FaultError(Exception):
    """A failed check: the message says what was found, `remedy` how to repair it."""

    def __init__(self, found: str, remedy: str) -> None:
        super().__init__(found)
        self.remedy = remedy


def installation() -> Iterator[Finding]:
    """Check what is installed. The checks start only Java and Python, to read their versions."""
    for name, check in _CHECKS.items():
        yield examined(name, check)
    yield connector()
    for extra, distributions in EXTRAS.items():
        versions = [f"{each} {installed(each)}" for each in distributions if installed(each)]
        absent = [each for each in distributions if not installed(each)]
        yield Finding(
            f"extra {extra}",
            "absent" if absent else "ok",
            ", ".join(versions + [f"no {each}" for each in absent]),
            f"pip install 'headrace[{extra}]'" if absent else None,
        )


def examined(name: str, check: Callable[[], str]) -> Finding:
    """Run a check and turn its result or exception into a finding."""
    try:
        return Finding(name, "ok", check())
    except FaultError as fault:
        return Finding(name, "fault", str(fault), fault.remedy)
    except HeadraceError as error:  # says what is wrong and what to do, in this order
        text, _, remedy = str(error).partition(". ")
        return Finding(name, "fault", text, remedy or None)


def java() -> str:
    """Check that Spark finds Java, and that its version is new enough."""
    return f"Java {check_java()}, {MINIMUM} or newer is needed"


def pyspark() -> str:
    """Check that PySpark has a supported version."""
    try:
        version = spark_version()
    except ConfigError:
        raise FaultError("PySpark is not installed", INSTALL) from None
    wanted = f"{'.'.join(map(str, MINIMUM_PYSPARK))} or newer, below {FIRST_UNKNOWN_PYSPARK[0]}"
    if not MINIMUM_PYSPARK <= numbers(version) < FIRST_UNKNOWN_PYSPARK:
        raise FaultError(f"PySpark {version}, and {wanted}, is needed", f"{INSTALL} --upgrade")
    return f"PySpark {version}"


def pyarrow() -> str:
    """Check that pyarrow has a supported version."""
    version = installed("pyarrow")
    if version is None or numbers(version) < MINIMUM_PYARROW:
        found = "is not installed" if version is None else version
        raise FaultError(
            f"pyarrow {found}, {MINIMUM_PYARROW[0]} or newer is needed", f"{INSTALL} --upgrade"
        )
    return f"pyarrow {version}"


def home() -> str:
    """Check that SPARK_HOME is not set, or names a Spark of PySpark's version."""
    given = os.environ.get("SPARK_HOME")
    if not given:
        return "PySpark's own"
    version = next(iter(jars(spark_home(), "spark-core").values()), None)
    if version is None:
        raise FaultError(f"SPARK_HOME is {given}, but no Spark is there", "unset SPARK_HOME")
    if version != spark_version():
        raise FaultError(
            f"SPARK_HOME is {given}, Spark {version}, and PySpark is {spark_version()}",
            f"unset SPARK_HOME, or pip install pyspark=={version}",
        )
    return f"{given}, Spark {version}"


def workers() -> str:
    """Check that the Python of Spark's workers has this version of the package, and has this Python's minor version."""
    given = os.environ.get("PYSPARK_PYTHON")
    # PySpark's own rule. The commands of this package set PYSPARK_PYTHON to their own Python; other programs do not.
    name = given or _DEFAULT_PYTHON
    what = (
        f"PYSPARK_PYTHON is {name}"
        if given
        else f"PYSPARK_PYTHON is not set, so workers are {name}"
    )
    command = shutil.which(name)
    remedy = f"set PYSPARK_PYTHON to {sys.executable}, or install headrace[spark] there"
    if command is None:
        raise FaultError(f"{what}, which does not exist", remedy)
    if not given:
        what = f"{what} of PATH, {command}"
    try:
        done = subprocess.run(  # noqa: S603 - the user's own Python
            [command, "-c", _PROGRAM],
            capture_output=True,
            text=True,
            timeout=_PYTHON_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise FaultError(f"{what}, which does not run: {error}", remedy) from None
    if done.returncode:
        why = (done.stderr.strip().splitlines() or ["it fails"])[-1]
        raise FaultError(f"{what}: {why}", remedy)
    python, _, package = done.stdout.strip().partition(" ")
    own = "{}.{}".format(*sys.version_info[:2])
    if python != own:
        raise FaultError(f"{what}, Python {python}; this is {own}", remedy)
    if package != __version__:
        raise FaultError(f"{what}, which has headrace {package}; this is {__version__}", remedy)
    return command


def discovery() -> str:
    """Check that Spark would find the format. Spark imports all modules named `pyspark_...` to find data sources."""
    names: dict[str, str] = {}
    for module in [each.name for each in iter_modules() if each.name.startswith(_PREFIX)]:
        try:
            source: Any = getattr(importlib.import_module(module), "DefaultSource", None)
        except Exception as error:
            raise FaultError(
                f"module {module} cannot be imported ({error!r}), and then Spark finds no source in Python at all",
                f"repair or uninstall the package with {module}",
            ) from error
        if source is not None:
            names[source.name()] = module
    if FORMAT not in names:
        raise FaultError(
            f'format("{FORMAT}") is not among those that Spark would find: {", ".join(names) or "none"}',
            f"{INSTALL} into this environment, {sys.prefix}",
        )
    return f'format("{FORMAT}") in module {names[FORMAT]}'


_CHECKS: Final[dict[str, Callable[[], str]]] = {
    "Java": java,
    "PySpark": pyspark,
    "pyarrow": pyarrow,
    "Spark": home,
    "workers' Python": workers,
    "format": discovery,
}


def connector() -> Finding:
    """Check Spark's own connector. It may be missing, but if it is there, it must have Spark's version."""
    name = "Kafka connector"
    try:
        spark, wanted = spark_version(), connector_coordinates()
    except ConfigError:
        return Finding(name, "absent", "no PySpark", INSTALL)
    found = jars(spark_home(), CONNECTOR)
    if not found:
        text = 'not among Spark\'s jars; only format("kafka") needs it'
        return Finding(name, "absent", text, f"spark-submit --packages {wanted}")
    for jar, version in found.items():
        if version != spark:
            remedy = f"remove the jar, and use --packages {wanted}"
            return Finding(name, "fault", f"{jar} is {version}, and Spark {spark}", remedy)
    return Finding(name, "ok", ", ".join(f"{jar} {version}" for jar, version in found.items()))


def session(properties: Mapping[str, Any], topic: str | None) -> str:
    """Start a session in which Spark finds the format. With a topic, read the topic.

    Args:
        properties: Properties of a client by their Kafka names.
        topic: The topic to read; None only looks up the format and needs no broker.

    Raises:
        FaultError: The session, the look-up or the read fails.
    """
    from headrace.spark.session import local_session, stop_session

    options = {"kafka.bootstrap.servers": "127.0.0.1:1", "subscribe": topic or "none"}
    options |= {f"kafka.{name}": str(value) for name, value in properties.items()}
    spark = local_session("headrace doctor", {"spark.log.level": "OFF"})
    try:
        frame = spark.read.format(FORMAT).options(**options).load()
        if topic is None:
            return f"Spark finds the format: {', '.join(frame.columns)}"
        return f"Spark read {frame.count()} records of {topic}"
    except Exception as error:
        raise FaultError(
            essence(str(error)), "what Spark was given is what `headrace spark` prints"
        ) from error
    finally:
        stop_session(spark)


def essence(text: str) -> str:
    """Return the line of Spark's error message that names the cause."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    own = [line.partition(": ")[2] for line in lines if line.startswith("headrace.")]
    return [*own[-1:], *lines, "no word of it"][0]
