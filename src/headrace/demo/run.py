"""Runs the steps of the demo in order."""

from __future__ import annotations

import contextlib
import importlib
import logging
import shutil
import signal
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

from headrace.demo import pipeline, stream
from headrace.demo.child import BrokerChild
from headrace.demo.flights import HOW_TO_GET, FlightEvent, load_airlines, load_flights, span
from headrace.demo.report import Outcome
from headrace.demo.statistics import Expected, Results, WrongResultError, check, compute
from headrace.demo.stream import Produced, Topics
from headrace.errors import ConfigError
from headrace.spark.java import check_java
from headrace.spark.session import local_session, stop_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MARKER: Final = ".headrace-demo"
OWN_NAMES: Final = ("data", "results", "checkpoint", "spark", "broker.log", "spark.log", MARKER)
"""The names of files and directories that the demo creates, and removes when it begins."""


class Progress(Protocol):
    """Receives reports about the progress of the demo."""

    def step(self, text: str) -> None:
        """Report the step that begins now."""

    def count(self, text: str, total: int) -> AbstractContextManager[Callable[[int], None]]:
        """Return a context manager. Its function reports how many more items of `total` are done."""


@dataclass(frozen=True)
class Settings:
    """The options of the demo."""

    records: int | None
    output: Path
    bootstrap: str | None
    topic_prefix: str = ""


def run_demo(settings: Settings, progress: Progress) -> Outcome:
    """Stream the flights through a broker and a pipeline, check the results and return them.

    Every process it started has ended when it returns or raises.

    Raises:
        ConfigError: Something that it needs is missing, or something is in its way.
        WrongResultError: The pipeline's results are not what the input gives.
        HeadraceError: The broker or the pipeline failed.
    """
    check_requirements()
    began = time.perf_counter()
    prepare_output(settings.output)
    progress.step("Reading the flights")
    events = load_flights(settings.records)
    with _broker(settings, progress) as bootstrap:
        topics = Topics.with_prefix(settings.topic_prefix)
        stream.create_topics(bootstrap, topics)
        with progress.count("Producing", len(events)) as advance:
            produced = stream.produce_flights(bootstrap, topics.flights, events, advance)
        places = pipeline.DemoLocations(
            bootstrap,
            topics.flights,
            topics.results,
            settings.output / "results",
            settings.output / "checkpoint",
        )
        progress.step("Starting Spark")
        spark_began = time.perf_counter()
        with _spark(settings.output) as spark:
            spark_seconds = time.perf_counter() - spark_began
            runs = _run_pipeline(spark, places, events, progress)
        progress.step("Checking the results")
        expected = compute(events)
        results = check_results(places, expected, produced)
    return Outcome(
        bootstrap,
        settings.bootstrap is None,
        settings.output,
        topics,
        *span(events),
        expected,
        results,
        load_airlines(),
        produced,
        spark_seconds,
        runs,
        time.perf_counter() - began,
    )


def check_requirements() -> None:
    """Check the requirements of the demo before it begins.

    Raises:
        ConfigError: PySpark or Java is.
    """
    try:
        for name in ("pyarrow", "pyspark.sql.datasource"):
            importlib.import_module(name)
    except ImportError as error:
        raise ConfigError(f"{error.name} is not installed: {HOW_TO_GET}") from None
    check_java()


def prepare_output(output: Path) -> None:
    """Create the directory, and remove the files of an earlier run.

    Raises:
        ConfigError: It holds something else.
    """
    if output.exists() and any(output.iterdir()) and not (output / MARKER).exists():
        raise ConfigError(
            f"{output} is not empty and not from a demo: choose another with --output"
        )
    for name in OWN_NAMES:
        path = output / name
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
    output.mkdir(parents=True, exist_ok=True)
    (output / MARKER).write_text(
        "`headrace demo` made this directory and may remove what is in it.\n"
    )


def check_results(
    places: pipeline.DemoLocations, expected: Expected, produced: Produced
) -> Results:
    """Compare files and topic with the expected results, and return the results.

    Raises:
        WrongResultError: They differ.
    """
    results = pipeline.read_parquet(places.parquet)
    check("the Parquet files", results, expected)
    from_topic, _ = stream.read_results(places.bootstrap, places.results)
    check(f"topic {places.results}", from_topic, expected)
    flights = sum(result.flights for result in results.values())
    if flights != produced.records:
        raise WrongResultError(f"{produced.records} flights were produced, {flights} were counted")
    return results


def _run_pipeline(
    spark: SparkSession,
    places: pipeline.DemoLocations,
    events: Sequence[FlightEvent],
    progress: Progress,
) -> tuple[pipeline.Run, ...]:
    """Run the query over the flights, then once more to close the last windows."""
    progress.step("Running the pipeline")
    first = pipeline.run_available(spark, places)
    progress.step("Closing the last windows")
    stream.produce_sentinels(places.bootstrap, places.flights, span(events)[1])
    return first, pipeline.run_available(spark, places)


@contextlib.contextmanager
def _broker(settings: Settings, progress: Progress) -> Iterator[str]:
    """Yield the address of the given broker, or of a broker that runs inside the block."""
    if settings.bootstrap is not None:
        yield settings.bootstrap
        return
    progress.step("Starting a broker")
    with BrokerChild(settings.output / "data", settings.output / "broker.log") as broker:
        yield broker.bootstrap


@contextlib.contextmanager
def _spark(output: Path) -> Iterator[SparkSession]:
    """Run a Spark session inside the block. The output of its processes goes to a file."""
    with warnings.catch_warnings(), _quiet_log():
        # PySpark warns of the version of pandas, which is here only with the flights and is not used.
        warnings.simplefilter("ignore")
        on_interrupt = signal.getsignal(signal.SIGINT)
        spark = local_session(
            "headrace demo",
            {
                "spark.local.dir": str(output / "spark"),
                "spark.sql.warehouse.dir": str(output / "spark" / "warehouse"),
            },
            log_path=output / "spark.log",
        )
        # PySpark's handler asks the JVM to cancel its jobs, which fails with a page of text if a response is in flight.
        signal.signal(signal.SIGINT, on_interrupt)
        try:
            yield spark
        finally:
            stop_session(spark)
            shutil.rmtree(output / "spark", ignore_errors=True)


@contextlib.contextmanager
def _quiet_log() -> Iterator[None]:
    """Keep py4j from printing the traceback of a Ctrl-C, as it does while the root logger has no handler."""
    handler = logging.NullHandler()
    logging.getLogger().addHandler(handler)
    try:
        yield
    finally:
        logging.getLogger().removeHandler(handler)
