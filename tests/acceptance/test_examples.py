"""The examples: each runs unchanged with a broker inside, with a served one, and with Apache Kafka."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.acceptance.place import Place
from tests.acceptance.programs import sum_up

ROOT = Path(__file__).resolve().parents[2]
STEP = re.compile(r"^(\d)\. ", re.MULTILINE)


def output_of(*command: str) -> str:
    result = subprocess.run(
        [sys.executable, *command],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def check_demo(output: str) -> None:
    assert STEP.findall(output) == ["1", "2", "3", "4", "5", "6"]
    steps = STEP.split(output)[2::2]
    readers = [re.findall(r"(\w+) reads partitions (.*)\.", step) for step in steps]
    shares = [{name: len(held.split(", ")) for name, held in found} for found in readers]
    assert shares[1] == {"anna": 3, "ben": 3}
    assert shares[2] == {"anna": 2, "ben": 2, "cleo": 2}
    assert shares[3] == {"ben": 3, "cleo": 3}
    assert shares[4] == {"ben": 6, "cleo": 6}
    kept = re.findall(r"That is (\d+) of (\d+) records", output)
    assert kept == [("120", "120"), ("180", "180"), ("300", "300")]


def test_the_demo_of_the_article_runs_in_one_process() -> None:
    check_demo(output_of("examples/article_demo.py"))


def test_the_demo_of_the_article_runs_over_tcp(served) -> None:
    check_demo(output_of("examples/article_demo.py", served))


@pytest.mark.java
def test_the_demo_of_the_article_runs_on_kafka(kafka) -> None:
    check_demo(output_of("examples/article_demo.py", kafka))


def test_one_program_runs_unchanged_everywhere(place: Place, name: str) -> None:
    """The example program, with a `Broker` or an address. test_a16 runs the same file in other processes."""
    topic = place.topic(name, 6)
    place.topic(f"{topic}-done")
    place.fill(topic, range(50), partitions=6)
    assert sum_up.main(place.target, name, topic, 50) == {"records": 50, "sum": sum(range(50))}
