"""The durability presets of brokers and topics, with a manual clock: whether a produce waits, and when a sync comes."""

from __future__ import annotations

import errno

import pytest

from headrace.errors import ErrorCode
from headrace.metadata_stores.memory import MemoryMetadataStore
from headrace.protocol.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
)
from headrace.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from tests.fixtures.broker_harness import BrokerHarness, batch, produce_request, values
from tests.fixtures.crash_files import CrashFileSystem

TOPIC, BROKER = 2, 4


def log_of(harness: BrokerHarness, topic: str = "t"):
    return harness.broker.services.partitions.require(topic, 0).log


def waits(harness: BrokerHarness, topic: str = "t") -> bool:
    """Return whether a produce waits for a sync, and sync if it does."""
    pending = harness.send(produce_request(topic, 0, batch(b"a")))
    if pending.done:
        return False
    harness.sync()
    assert pending.response.responses[0].partition_responses[0].error_code == ErrorCode.NONE
    return True


def alter(harness: BrokerHarness, name: str, value: str, resource: str = "t", kind: int = TOPIC):
    config = AlterableConfig(name=name, config_operation=0, value=value)
    row = AlterConfigsResource(resource_type=kind, resource_name=resource, configs=[config])
    (answer,) = harness.call(IncrementalAlterConfigsRequest(resources=[row])).responses
    return answer.error_code


def described(harness: BrokerHarness, resource: str = "t", kind: int = TOPIC):
    row = DescribeConfigsResource(resource_type=kind, resource_name=resource)
    request = DescribeConfigsRequest(resources=[row], include_synonyms=True)
    return {entry.name: entry for entry in harness.call(request).results[0].configs}


@pytest.mark.parametrize(
    ("broker", "topic", "expected"),
    [
        ("fsync", {}, True),
        ("interval:100", {}, False),
        ("os", {}, False),
        ("os", {"headrace_durability": "fsync"}, True),
        ("os", {"flush_messages": "1"}, True),
        ("os", {"flush_messages": "2"}, False),
        ("os", {"flush_ms": "0"}, True),
        ("os", {"flush_ms": "100"}, False),
        ("interval:100", {"headrace_durability": "fsync"}, True),
        ("fsync", {"headrace_durability": "os"}, False),
        ("fsync", {"headrace_durability": "interval:5"}, False),
        ("fsync", {"flush_ms": "100"}, True),
        ("fsync", {"headrace_durability": "os", "flush_messages": "1"}, True),
    ],
)
def test_the_durability_decides_whether_a_produce_waits_for_a_sync(broker, topic, expected):
    harness = BrokerHarness(durability=broker)
    harness.create_topic("t", **topic)
    assert waits(harness) == expected


@pytest.mark.parametrize(
    ("broker", "topic", "milliseconds"),
    [
        ("interval:200", {}, 200),
        ("os", {"headrace_durability": "interval:200"}, 200),
        ("os", {"flush_ms": "200"}, 200),
        ("interval:900", {"flush_ms": "200"}, 200),
        ("interval:200", {"flush_ms": "900"}, 200),
        ("os", {}, 30_000),
    ],
)
def test_acknowledged_records_are_synced_within_the_interval(broker, topic, milliseconds):
    harness = BrokerHarness(durability=broker)
    harness.create_topic("t", **topic)
    for count in (1, 2, 3):
        harness.produce("t", b"a")
        assert log_of(harness).synced_offset == count - 1
        harness.advance(milliseconds)
        assert harness.sync()
        assert log_of(harness).synced_offset == count
    harness.advance(milliseconds)
    assert not harness.sync(), "nothing was written since"


def test_logs_with_one_interval_share_a_sync():
    harness = BrokerHarness(durability="interval:1000")
    harness.create_topic("t", partitions=4)
    for partition in range(4):
        harness.produce("t", b"a", partition=partition)
        harness.advance(100)
    harness.advance(600)
    batch_ = harness.broker.start_sync()
    assert batch_ is not None
    assert len(batch_.tasks) == 4


@pytest.mark.parametrize(
    "preset", ["hope", "", "interval", "interval:", "interval:0", "interval:-1", "interval:3600001"]
)
def test_an_invalid_durability_preset_is_refused(preset):
    harness = BrokerHarness()
    harness.create_topic("t")
    assert alter(harness, "headrace.durability", preset) == ErrorCode.INVALID_CONFIG
    assert described(harness)["headrace.durability"].value == "fsync"


def test_a_topics_preset_applies_at_once_and_after_a_restart():
    harness = BrokerHarness(durability="os")
    harness.create_topic("t")
    assert not waits(harness)
    assert alter(harness, "headrace.durability", "fsync") == ErrorCode.NONE
    assert waits(harness)
    assert log_of(harness).synced_offset == 2, "also what was written under the old preset"
    harness.restart()
    assert waits(harness)
    assert alter(harness, "headrace.durability", "interval:100") == ErrorCode.NONE
    assert not waits(harness)


def test_a_delayed_produce_completes_when_the_topic_no_longer_requires_a_sync():
    harness = BrokerHarness()
    harness.create_topic("t")
    pending = harness.send(produce_request("t", 0, batch(b"a")))
    assert not pending.done
    assert alter(harness, "headrace.durability", "os") == ErrorCode.NONE
    assert pending.response.responses[0].partition_responses[0].base_offset == 0
    assert harness.sync(), "and it is synced all the same"


def test_a_change_while_a_sync_runs():
    harness = BrokerHarness()
    harness.create_topic("t")
    first = harness.send(produce_request("t", 0, batch(b"a")))
    running = harness.broker.start_sync()
    assert running is not None
    second = harness.send(produce_request("t", 0, batch(b"b")))
    alter(harness, "headrace.durability", "os")
    alter(harness, "headrace.durability", "fsync")
    third = harness.send(produce_request("t", 0, batch(b"c")))
    assert [answer.done for answer in (first, second, third)] == [True, True, False]
    running.run()
    harness.broker.finish_sync(running, None, harness.now_ms)
    assert [answer.done for answer in (first, second, third)] == [True, True, False]
    assert harness.sync()
    assert [answer.done for answer in (first, second, third)] == [True, True, True]
    assert log_of(harness).synced_offset == 3


def test_a_brokers_flush_setting_counts_for_its_topics_while_it_runs():
    harness = BrokerHarness(durability="os")
    harness.create_topic("t")
    assert alter(harness, "log.flush.interval.messages", "1", "1", BROKER) == ErrorCode.NONE
    assert waits(harness)


def test_the_preset_is_described_with_where_it_comes_from():
    harness = BrokerHarness(durability="os")
    harness.create_topic("t")
    entry = described(harness)["headrace.durability"]
    assert (entry.value, entry.config_source) == ("os", 4)
    assert [(s.name, s.value) for s in entry.synonyms] == [
        ("durability", "os"),
        ("durability", "fsync"),
    ]
    alter(harness, "headrace.durability", "interval:100")
    entry = described(harness)["headrace.durability"]
    assert (entry.value, entry.config_source) == ("interval:100", 1)
    assert described(harness, "1", BROKER)["durability"].value == "os"


@pytest.mark.parametrize(
    ("preset", "warned"), [("os", True), ("interval:500", True), ("fsync", False)]
)
def test_a_start_warns_of_reduced_durability(preset, warned):
    harness = BrokerHarness(files=CrashFileSystem(), durability=preset)
    assert ("durability_reduced" in harness.journal.events("warning")) == warned
    in_memory = BrokerHarness(durability=preset)
    assert not in_memory.journal.events("warning")


def test_a_start_names_the_topics_that_promise_less_than_the_broker():
    harness = BrokerHarness(files=CrashFileSystem(), metadata=MemoryMetadataStore())
    harness.create_topic("loose", headrace_durability="os")
    harness.create_topic("firm")
    assert not harness.journal.events("warning")
    harness.restart()
    (fields,) = [
        fields
        for _, event, fields in harness.journal.lines
        if event == "durability_reduced_for_topics"
    ]
    assert (fields["topics"], fields["count"]) == ("loose", 1)


def test_deleting_a_topic_forgets_its_background_sync():
    harness = BrokerHarness(durability="interval:100")
    harness.create_topic("t")
    harness.create_topic("u")
    harness.produce("t", b"a")
    harness.delete_topic("t")
    harness.produce("u", b"b")
    harness.advance(100)
    batch_ = harness.broker.start_sync()
    assert batch_ is not None
    assert len(batch_.tasks) == 1
    assert values(harness.fetch("u", 0).records) == [b"b"]


@pytest.mark.parametrize("durability", ["fsync", "interval:1000"])
def test_a_sync_for_which_no_file_could_be_opened_is_done_again(durability: str) -> None:
    files = CrashFileSystem()
    harness = BrokerHarness(files=files)
    harness.create_topic("t", headrace_durability=durability, segment_bytes="300")
    harness.send(produce_request("t", 0, batch(b"a" * 150)))
    waiting = harness.send(produce_request("t", 0, batch(b"b" * 150)))  # in a second segment
    files.fault = lambda kind, _path: errno.EMFILE if kind == "sync_directory" else None
    harness.advance(1000)
    assert harness.sync()
    assert not harness.broker.failed
    assert waiting.done is (durability != "fsync")
    assert "sync_put_off" in harness.journal.events("warning")
    assert not harness.broker.sync_due  # it is not retried at once
    files.fault = None
    harness.advance(1000)
    assert harness.sync()
    assert waiting.response.responses[0].partition_responses[0].error_code == 0
    harness.files = files.after_power_cut(1)
    harness.crash()
    assert values(harness.fetch("t", 0).records) == [b"a" * 150]
    assert values(harness.fetch("t", 1).records) == [b"b" * 150]
