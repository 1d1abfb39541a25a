"""A small Spark session on this machine: what the demo and the tests use, and a start for programs of one's own."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from headrace.spark.java import check_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

REDACTED: Final = "(?i)url|jaas|ssl[.]key|archivecatalog"
"""Options whose values Spark leaves out of plans, in logs and its UI, besides those with password, secret or token."""

# Quick to start rather than quick at its peak: the first of the two compilers only, and no collector threads.
JVM_OPTIONS: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
SETTINGS: Final[Mapping[str, str]] = {
    "spark.driver.memory": "1g",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.extraJavaOptions": JVM_OPTIONS,
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "10000",
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.sql.redaction.options.regex": REDACTED,
}
MASTER: Final = "local[2,4]"
"""Two cores, four attempts for each task; plain `local[2]` never repeats a task."""
STOP_TIMEOUT_S: Final = 20


def local_session(
    name: str,
    settings: Mapping[str, str] | None = None,
    *,
    master: str = MASTER,
    log_path: Path | None = None,
) -> SparkSession:
    """Start Spark in this process and a JVM beside it.

    Args:
        name: What Spark shows as the application.
        settings: Spark settings besides, or instead of, `SETTINGS`.
        master: Where to run.
        log_path: A file for all that Spark's processes print, instead of this process's output.

    Raises:
        ConfigError: Java is missing or too old.
    """
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    return open_session(name, {**SETTINGS, **(settings or {})}, master=master, log_path=log_path)


def open_session(
    name: str, settings: Mapping[str, str], *, master: str, log_path: Path | None = None
) -> SparkSession:
    """Start Spark with these settings alone; the arguments are those of `local_session`.

    Raises:
        ConfigError: Java is missing or too old.
    """
    check_java()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master(master).appName(name)
    for key, value in settings.items():
        builder = builder.config(key, value)
    with contextlib.nullcontext() if log_path is None else _output_to(log_path):
        return builder.getOrCreate()


@contextlib.contextmanager
def _output_to(path: Path) -> Iterator[None]:
    """Let processes that are started inside the block inherit a file as their standard output and error.

    PySpark has no setting for that. For the length of the block this process writes there too.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    saved = {number: os.dup(number) for number in (1, 2)}
    try:
        with path.open("ab") as log:
            for number in saved:
                os.dup2(log.fileno(), number)
            yield
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        for number, copy in saved.items():
            os.dup2(copy, number)
            os.close(copy)


def stop_session(spark: SparkSession) -> None:
    """Stop Spark and wait until its JVM, and with it every Python worker, has ended.

    `SparkSession.stop` leaves the JVM running until this process ends.
    """
    context: Any = spark.sparkContext
    gateway = context._gateway  # noqa: SLF001 - PySpark has no other way to its JVM
    process = getattr(gateway, "proc", None)
    with contextlib.suppress(Exception):  # a JVM that is gone already cannot be asked
        spark.stop()
    with contextlib.suppress(Exception):
        gateway.shutdown()
    type(context)._gateway = None  # noqa: SLF001 - so that a later session starts a JVM of its own
    type(context)._jvm = None  # noqa: SLF001 - so that a later session starts a JVM of its own
    if process is not None:
        _end(process)


def _end(process: Any) -> None:
    """End the JVM: it stops by itself when its standard input closes."""
    if process.stdin is not None:
        process.stdin.close()
    try:
        process.wait(STOP_TIMEOUT_S)
    except Exception:  # noqa: BLE001 - whatever the wait ended with, the process must not stay
        process.kill()
        process.wait()
