"""The versions of Spark and its parts in this environment. Nothing is started."""

from __future__ import annotations

import importlib.metadata
import os
import re
from pathlib import Path
from typing import Final

from headrace.errors import ConfigError

MINIMUM_PYSPARK: Final = (4, 2)
FIRST_UNKNOWN_PYSPARK: Final = (5,)
MINIMUM_PYARROW: Final = (18,)
INSTALL: Final = "pip install 'headrace[spark]'"
CONNECTOR: Final = "spark-sql-kafka-0-10"
_SCALA: Final = "2.13"


def installed(distribution: str) -> str | None:
    """Return the version of a distribution, or None if it is not installed."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def numbers(version: str) -> tuple[int, ...]:
    """Return the leading numbers of a version: (4, 3, 0) for 4.3.0.dev1."""
    match = re.match(r"\d+(?:\.\d+)*", version)
    return tuple(map(int, match[0].split("."))) if match else ()


def spark_version() -> str:
    """Return PySpark's version.

    Raises:
        ConfigError: PySpark is not installed.
    """
    version = installed("pyspark") or installed("pyspark-client")
    if version is None:
        raise ConfigError(f"PySpark is not installed: {INSTALL}")
    return version


def spark_home() -> Path | None:
    """Return the directory of the Spark that would be started: SPARK_HOME, or PySpark's own. None without PySpark."""
    given = os.environ.get("SPARK_HOME")
    if given:
        return Path(given)
    try:
        found = importlib.metadata.distribution("pyspark").locate_file("pyspark")
    except importlib.metadata.PackageNotFoundError:
        return None
    return Path(str(found))


def jars(home: Path | None, prefix: str) -> dict[str, str]:
    """Return the versions of the jars whose names begin with a prefix, by name."""
    found = {}
    for path in sorted((home / "jars").glob(f"{prefix}*.jar")) if home is not None else ():
        match = re.fullmatch(r"(.+?)-(\d[\w.]*)\.jar", path.name)
        if match:
            found[match[1]] = match[2]
    return found


def scala_version() -> str:
    """Return the Scala version of this Spark's jars, for example 2.13."""
    library = jars(spark_home(), "scala-library").get("scala-library", _SCALA)
    return ".".join(library.split(".")[:2])


def connector_coordinates() -> str:
    """Return the Maven coordinates of Spark's own Kafka connector, which has exactly Spark's version.

    Raises:
        ConfigError: PySpark is not installed.
    """
    return f"org.apache.spark:{CONNECTOR}_{scala_version()}:{spark_version()}"
