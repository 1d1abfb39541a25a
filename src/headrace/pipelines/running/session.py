"""The Spark session of a process. It is opened at the first use, and again after its JVM has ended."""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
import signal
import threading
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from headrace.errors import ConfigError
from headrace.spark.java import check_java
from headrace.spark.session import REDACTED, open_session, stop_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOGGERS: Final = ("DataFrameQueryContextLogger", "SQLQueryContextLogger", "py4j")
"""Loggers that write long texts to standard error for every error, although PySpark also raises it."""
DEFAULT_MASTER: Final = "local[*]"
SETTINGS: Final[Mapping[str, str]] = {
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "10000",
    "spark.python.unix.domain.socket.enabled": "true",
    # A batch that waits in Python cannot be interrupted. Stopping it must not block the thread of all pipelines.
    "spark.sql.streaming.stopTimeout": "30s",
    "spark.sql.redaction.options.regex": REDACTED,
}
LOCAL_SETTINGS: Final[Mapping[str, str]] = {
    **SETTINGS,
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.sql.shuffle.partitions": str(max(2, os.cpu_count() or 2)),
}


@dataclass
class Sessions:
    """Opens Spark sessions, one at a time."""

    name: str
    master: str = DEFAULT_MASTER
    settings: Mapping[str, str] = field(default_factory=dict)
    log_path: Path | None = None
    _spark: SparkSession | None = field(default=None, init=False)

    def get(self) -> SparkSession:
        """Return the session. Open a new one if there is none, or if its JVM has ended.

        Raises:
            ConfigError: Java or PySpark is missing.
        """
        if self._spark is not None and not self.alive:
            self.close()
        if self._spark is None:
            self._spark = self._open()
        return self._spark

    @property
    def alive(self) -> bool:
        """Whether there is a session whose JVM runs."""
        if self._spark is None:
            return False
        process: Any = getattr(self._spark.sparkContext._gateway, "proc", None)  # noqa: SLF001 - no other way to it
        return process is None or process.poll() is None

    def close(self) -> None:
        """End Spark and its JVM."""
        if self._spark is not None:
            stop_session(self._spark)
            _forget_session()
            self._spark = None

    def _open(self) -> SparkSession:
        check_spark()
        for name in LOGGERS:
            logging.getLogger(name).setLevel(logging.CRITICAL)
        local = self.master.startswith("local")
        if local:
            os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        settings = {**(LOCAL_SETTINGS if local else SETTINGS), **self.settings}
        main = threading.current_thread() is threading.main_thread()
        on_interrupt = signal.getsignal(signal.SIGINT)
        # PySpark warns of the version of pandas with every function, although pandas is not used.
        warnings.filterwarnings("ignore", "PySpark does not yet fully support pandas")
        spark = open_session(self.name, settings, master=self.master, log_path=self.log_path)
        if main and on_interrupt is not None:
            # PySpark's own handler cancels the jobs of all running batches.
            signal.signal(signal.SIGINT, on_interrupt)
        return spark


def _forget_session() -> None:
    """Make PySpark create a new session next time. It would return a session that was not stopped properly."""
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    for owner, name in (
        (SparkContext, "_active_spark_context"),
        (SparkSession, "_instantiatedSession"),
        (SparkSession, "_activeSession"),
    ):
        with contextlib.suppress(AttributeError):
            setattr(owner, name, None)


def check_spark() -> None:
    """Check that everything that Spark needs is installed. Spark's own errors do not name what is missing.

    Raises:
        ConfigError: PySpark, pyarrow or Java is missing.
    """
    for name in ("pyarrow", "pyspark.sql.datasource"):
        try:
            importlib.import_module(name)
        except ImportError:
            raise ConfigError(
                f"{name.partition('.')[0]} is not installed: pip install 'headrace[spark]'"
            ) from None
    check_java()
