"""A small demo runs as a user starts it, and leaves no process or file behind."""

from __future__ import annotations

import datetime as dt
import itertools
import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pyarrow.parquet as pq
import pytest

from headrace.demo import pipeline, stream
from headrace.demo.flights import load_airlines, load_flights, span
from headrace.demo.statistics import check, compute
from tests.fixtures.targets import Target
from tests.integration.spark.conftest import Topics

TIMEOUT_S = 240


@pytest.fixture
def _java(spark: Any) -> None:
    """Skip tests if Spark cannot run."""


def command(output: Path, *arguments: str) -> list[str]:
    return [sys.executable, "-m", "headrace.cli", "demo", "--output", str(output), *arguments]


def wait_until(condition: Any, what: str) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not come"
        time.sleep(0.05)


def runs(process: psutil.Process) -> bool:
    """Return whether a process is alive. A zombie is not."""
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def test_all_flights_in_the_order_of_their_departure() -> None:
    events = load_flights()

    assert len(events) == 336_776
    assert all(
        before.timestamp_ms <= after.timestamp_ms for before, after in itertools.pairwise(events)
    )
    assert sum(event.flight.cancelled for event in events) == 8_255
    assert set(load_airlines()) >= {event.flight.carrier for event in events}
    assert load_flights(10) == events[:10]


@pytest.mark.usefixtures("_java")
@pytest.mark.timeout(TIMEOUT_S + 60)
def test_the_demo_checks_its_results_and_ends_what_it_started(tmp_path: Path) -> None:
    output = tmp_path / "demo"
    done = subprocess.run(
        command(output, "--records", "5000", "--format", "json"),
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    assert done.stderr == "", "standard error is empty without a terminal"
    found = json.loads(done.stdout)
    assert (found["verified"], found["records"]) == (True, 5000)
    assert sum(each["flights"] for each in found["carriers"]) == 5000
    files = list((output / "results").glob("batch=*/*.parquet"))
    assert sum(pq.read_metadata(path).num_rows for path in files) == found["windows"]
    assert not [
        each
        for each in psutil.process_iter(["cmdline"])
        if str(output) in str(each.info["cmdline"])
    ]


@pytest.mark.usefixtures("_java")
@pytest.mark.timeout(TIMEOUT_S + 60)
def test_ctrl_c_ends_everything(tmp_path: Path) -> None:
    output = tmp_path / "demo"
    # Children of a background shell ignore SIGINT; children of a user's terminal do not.
    program = (
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
        "from headrace.cli import main; main()"
    )
    errors_path = tmp_path / "errors"
    with errors_path.open("wb") as errors:
        process = subprocess.Popen(
            [sys.executable, "-c", program, *command(output, "--records", "20000")[3:]],
            stdout=subprocess.DEVNULL,
            stderr=errors,
        )
    try:
        wait_until(
            lambda: (output / "checkpoint" / "offsets").exists() or process.poll() is not None,
            "the pipeline",
        )
        started = psutil.Process(process.pid).children(recursive=True)
        assert len(started) >= 3, "a broker, a JVM, a Python worker"
        process.send_signal(signal.SIGINT)
        process.wait(60)
    finally:
        process.kill()
        process.wait()

    assert process.returncode == 130, errors_path.read_text()
    assert errors_path.read_text() == "headrace demo: interrupted; all its processes have ended\n"
    wait_until(lambda: not any(map(runs, started)), "the end of every process")


def test_topics_that_exist_are_not_mixed_with_the_demos(
    tmp_path: Path, topics: Topics, server: Target
) -> None:
    topics.create(name="taken-flights")
    done = subprocess.run(
        command(
            tmp_path / "demo",
            "--records",
            "10",
            "--bootstrap",
            server.bootstrap,
            "--topic-prefix",
            "taken-",
        ),
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )

    assert done.returncode == 2
    assert "topic taken-flights exists" in done.stderr
    assert "--topic-prefix" in done.stderr


def test_results_written_again_for_the_same_batch_do_not_double(
    spark: Any, topics: Topics, server: Target, tmp_path: Path
) -> None:
    names = stream.Topics.with_prefix(f"{topics.create()}-")
    stream.create_topics(server.bootstrap, names)
    places = pipeline.DemoLocations(
        server.bootstrap,
        names.flights,
        names.results,
        tmp_path / "results",
        tmp_path / "checkpoint",
    )
    at = dt.datetime(2013, 1, 1, 10, tzinfo=dt.UTC)
    rows = [("UA", at, at, 3, 1, 15.0, 20, 0.5), ("EV", at, at, 1, 1, None, None, None)]
    frame = spark.createDataFrame(
        [*rows, (None, at, at, 4, 0, None, None, None)],
        "carrier string, window_start timestamp, window_end timestamp, flights long, cancelled long, "
        "mean_delay_minutes double, max_delay_minutes int, late_share double",
    )

    for _ in range(2):
        pipeline.write_results(frame, 7, places)

    files = pipeline.read_parquet(places.parquet)
    in_topic, records = stream.read_results(server.bootstrap, names.results)
    assert {key.carrier: tuple(result) for key, result in files.items()} == {
        "UA": (3, 1, 15.0, 20, 0.5),
        "EV": (1, 1, None, None, None),
    }
    assert in_topic == files
    assert records == 4, "the topic has them twice: at least once"


def test_a_restarted_demo_pipeline_loses_no_record(
    spark: Any, topics: Topics, server: Target, tmp_path: Path
) -> None:
    names = stream.Topics.with_prefix(f"{topics.create()}-")
    stream.create_topics(server.bootstrap, names)
    places = pipeline.DemoLocations(
        server.bootstrap,
        names.flights,
        names.results,
        tmp_path / "results",
        tmp_path / "checkpoint",
    )
    events = load_flights(3000)
    for part in (events[:1000], events[1000:1001], events[1001:]):
        stream.produce_flights(server.bootstrap, names.flights, part, lambda _count: None)
        pipeline.run_available(spark, places)
    stream.produce_sentinels(server.bootstrap, names.flights, span(events)[1])
    pipeline.run_available(spark, places)

    check("the files", pipeline.read_parquet(places.parquet), compute(events))
