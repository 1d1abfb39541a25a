"""The options of a write: exactly-once writes, and contradictory options."""

from __future__ import annotations

import pytest

from headrace.errors import ConfigError
from headrace.spark.options.sink import WriteId, producer_config, sink_options

GOOD = {"kafka.bootstrap.servers": "h:1", "topic": "out"}


def test_streams_are_exactly_once_and_batches_with_an_id_too() -> None:
    assert sink_options(GOOD, streaming=True).exactly_once
    assert not sink_options({**GOOD, "delivery": "at_least_once"}, streaming=True).exactly_once
    assert not sink_options(GOOD, streaming=False).exactly_once

    once = sink_options({**GOOD, "txnAppId": "app", "txnVersion": "7"}, streaming=False)

    assert (once.exactly_once, once.transaction) == (True, WriteId("headrace-spark-app@out", 7))


def test_names_begin_as_access_control_wants_them() -> None:
    given = {**GOOD, "txnAppId": "app", "txnVersion": "7", "kafka.transactional.id": "team"}

    options = sink_options(given, streaming=False)

    assert options.transaction == WriteId("team-app@out", 7)
    assert producer_config(options.client).transactional_id is None


def test_writes_of_one_batch_to_several_topics_are_not_taken_for_each_other() -> None:
    options = {**GOOD, "txnAppId": "app", "txnVersion": "7"}
    topics: list[dict[str, str]] = [{}, {"topic": "out-1"}, {"topic": ""}]

    found = [sink_options({**options, **each}, streaming=False).transaction for each in topics]

    assert len({once.name for once in found if once is not None}) == 3


def test_options_of_sparks_stream_writer_are_ignored() -> None:
    sink_options({**GOOD, "checkpointLocation": "x", "queryName": "q"}, streaming=True)


@pytest.mark.parametrize(
    ("streaming", "options", "message"),
    [
        (True, {"delivery": "once"}, "delivery is one of exactly_once, at_least_once"),
        (True, {"txnAppId": "a", "txnVersion": "1"}, "are for batch writes"),
        (False, {"txnAppId": "a"}, "are given together"),
        (False, {"txnVersion": "1"}, "are given together"),
        (False, {"txnAppId": "a", "txnVersion": "-1"}, "txnVersion must be a whole number"),
        (False, {"delivery": "exactly_once"}, "needs txnAppId and txnVersion"),
        (
            False,
            {"delivery": "at_least_once", "txnAppId": "a", "txnVersion": "1"},
            "leave them or delivery out",
        ),
        (True, {"kafka.acks": "1"}, "kafka.acks cannot be '1': writes from Spark are always"),
        (True, {"kafka.enable.idempotence": "false"}, "always acknowledged by all replicas"),
        (True, {"kafka.lingre.ms": "1"}, "linger"),
        (
            True,
            {"delivery": "at_least_once", "kafka.transactional.id": "x"},
            "leave one of the two out",
        ),
    ],
)
def test_contradictory_sink_options_are_refused(
    streaming: bool,  # noqa: FBT001 - a parameter of the test
    options: dict[str, str],
    message: str,
) -> None:
    with pytest.raises(ConfigError, match=message):
        sink_options({**GOOD, **options}, streaming=streaming)
