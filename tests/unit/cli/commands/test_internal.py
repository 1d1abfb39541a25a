"""Headrace's internal topics and groups are listed only with --internal; on a terminal the number of hidden ones is
shown."""

from __future__ import annotations

import json
from collections.abc import Iterator
from unittest import mock

import pytest
from click.testing import CliRunner, Result

import headrace
from headrace.cli import main
from headrace.testing import Broker

OWN_GROUPS = ["headrace-redrive", "headrace-spark-1@revenue-claim"]
OWN_TOPICS = [
    "__bridge.s",
    "headrace-seen.billing.bill",
    "headrace-spark-claims",
    "headrace-spark-markers",
]


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as running:
        for topic in ("orders", *OWN_TOPICS):
            running.create_topic(topic)
        running.publish("orders", "one")
        for group in ("billing", *OWN_GROUPS):
            with headrace.Consumer(running, group=group, auto_offset_reset="earliest") as consumer:
                consumer.subscribe(["orders"])
                assert consumer.poll(10)
        running.create_group("idle")
        yield running


def run(broker: Broker, *arguments: str, terminal: bool = False) -> Result:
    with (
        mock.patch("headrace.cli.output.printing.is_terminal", return_value=terminal),
        mock.patch("headrace.cli.output.internal.is_terminal", return_value=terminal),
    ):
        result = CliRunner().invoke(main, [*arguments, "-b", broker.bootstrap])
    assert result.exit_code == 0, result.output
    return result


LISTS = {
    "topic list": ("topic", ["orders"], OWN_TOPICS, "internal topics hidden"),
    "group list": ("group", ["billing", "idle"], OWN_GROUPS, "2 internal groups hidden"),
    "group lag": ("group", ["billing"], OWN_GROUPS, "2 internal groups hidden"),
}


@pytest.mark.parametrize("name", LISTS)
def test_own_things_are_hidden(broker: Broker, name: str) -> None:
    command = name.split()
    key, shown, hidden, told = LISTS[name]
    found = json.loads(run(broker, *command, "--format", "json").stdout)
    assert [each[key] for each in found] == shown
    found = json.loads(run(broker, *command, "--internal", "--format", "json").stdout)
    assert {*shown, *hidden} <= {each[key] for each in found}

    assert told in run(broker, *command, terminal=True).stderr
    assert run(broker, *command).stderr == ""
    assert run(broker, *command, "--internal", terminal=True).stderr == ""
