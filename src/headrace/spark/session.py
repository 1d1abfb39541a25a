"""A small Spark session on this machine, for the demo, the tests and the user's first programs."""

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
"""Names of options whose values Spark hides in plans, logs and its UI, as it does for password, secret and token."""

# A short start counts more than peak speed: only the first of the two compilers, and no collector threads.
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
"""Two cores and four attempts for each task. Plain `local[2]` never repeats a task."""
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
        name: The application's name in Spark.
        settings: Spark settings, which take precedence over `SETTINGS`.
        master: Spark's master URL.
        log_path: A file for the output of Spark's processes; None is this process's output.

    Raises:
        ConfigError: Java is missing or too old.
    """
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    return open_session(name, {**SETTINGS, **(settings or {})}, master=master, log_path=log_path)


def open_session(
    name: str, settings: Mapping[str, str], *, master: str, log_path: Path | None = None
) -> SparkSession:
    """Start Spark with these settings alone. The arguments are those of `local_session`.

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
    """Redirect the standard output and error of processes that start inside the block to a file.

    PySpark has no setting for its JVM's output. Inside the block this process's output goes to the file, too.
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
    """Stop Spark and wait until its JVM and all Python workers have ended.

    `SparkSession.stop` leaves the JVM running until this process ends.
    """
    context: Any = spark.sparkContext
    gateway = context._gateway  # noqa: SLF001 - PySpark has no other way to its JVM
    process = getattr(gateway, "proc", None)
    with contextlib.suppress(Exception):  # the JVM may have ended already
        spark.stop()
    with contextlib.suppress(Exception):
        gateway.shutdown()
    type(context)._gateway = None  # noqa: SLF001 - so that a later session starts a JVM of its own
    type(context)._jvm = None  # noqa: SLF001 - so that a later session starts a JVM of its own
    if process is not None:
        _end(process)


def _end(process: Any) -> None:
    """End the JVM by closing its standard input. Kill the JVM if it does not end in time."""
    if process.stdin is not None:
        process.stdin.close()
    try:
        process.wait(STOP_TIMEOUT_S)
    except Exception:  # noqa: BLE001 - whatever the wait ended with, the process must not stay
        process.kill()
        process.wait()
