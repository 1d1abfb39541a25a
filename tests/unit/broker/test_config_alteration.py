"""AlterConfigs and IncrementalAlterConfigs: topics and brokers, sources and synonyms, durable and at once in force."""

from __future__ import annotations

import pytest

from headrace.deferred import resolved
from headrace.errors import ErrorCode, StorageError
from headrace.ports import Put, Unavailable
from headrace.protocol.messages.alter_configs import (
    AlterableConfig,
    AlterConfigsRequest,
    AlterConfigsResource,
)
from headrace.protocol.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
)
from headrace.protocol.messages.incremental_alter_configs import (
    AlterableConfig as IncrementalConfig,
)
from headrace.protocol.messages.incremental_alter_configs import (
    AlterConfigsResource as IncrementalResource,
)
from headrace.protocol.messages.incremental_alter_configs import (
    IncrementalAlterConfigsRequest,
)
from tests.fixtures.broker_harness import BrokerHarness, batch, produce_request
from tests.fixtures.metadata_stores import stored

TOPIC, BROKER = 2, 4
SET, DELETE, APPEND, SUBTRACT = range(4)
DYNAMIC_TOPIC, DYNAMIC_BROKER, DYNAMIC_DEFAULT, STATIC, DEFAULT = range(1, 6)


@pytest.fixture
def harness() -> BrokerHarness:
    made = BrokerHarness(log_retention_bytes=5000)
    made.create_topic("t", partitions=2, retention_ms="1000")
    return made


def change(harness, *changes, kind=TOPIC, name="t", version=1, validate_only=False):
    """Change settings, each (name, value) or (name, value, operation). Return the error code."""
    configs = [
        IncrementalConfig(
            name=each[0], value=each[1], config_operation=each[2] if len(each) > 2 else SET
        )
        for each in changes
    ]
    resource = IncrementalResource(resource_type=kind, resource_name=name, configs=configs)
    request = IncrementalAlterConfigsRequest(resources=[resource], validate_only=validate_only)
    (response,) = harness.call(request, version).responses
    assert (response.resource_type, response.resource_name) == (kind, name)
    assert bool(response.error_message) == bool(response.error_code)
    return ErrorCode(response.error_code)


def replace(harness, kind=TOPIC, name="t", *, version=2, validate_only=False, **configs):
    settings = [AlterableConfig(name=k.replace("_", "."), value=v) for k, v in configs.items()]
    resource = AlterConfigsResource(resource_type=kind, resource_name=name, configs=settings)
    request = AlterConfigsRequest(resources=[resource], validate_only=validate_only)
    (response,) = harness.call(request, version).responses
    return ErrorCode(response.error_code)


def described(harness, kind=TOPIC, name="t") -> dict[str, tuple[str, int]]:
    return {c.name: (c.value, c.config_source) for c in configs(harness, kind, name)}


def configs(harness, kind, name):
    request = DescribeConfigsRequest(
        resources=[
            DescribeConfigsResource(resource_type=kind, resource_name=name, configuration_keys=None)
        ],
        include_synonyms=True,
    )
    (result,) = harness.call(request).results
    assert result.error_code == 0
    return result.configs


def synonyms(harness, config, kind=TOPIC, name="t"):
    (found,) = [c for c in configs(harness, kind, name) if c.name == config]
    return [(s.name, s.value, s.source) for s in found.synonyms]


# Topics


@pytest.mark.parametrize("version", range(2))
def test_single_settings_are_set_and_the_others_stay(harness, version):
    assert change(harness, ("segment.bytes", "2000"), version=version) == ErrorCode.NONE
    told = described(harness)
    assert told["segment.bytes"] == ("2000", DYNAMIC_TOPIC)
    assert told["retention.ms"] == ("1000", DYNAMIC_TOPIC)
    assert told["retention.bytes"] == ("5000", STATIC)


@pytest.mark.parametrize("version", range(3))
def test_replacing_configs_resets_the_settings_left_out(harness, version):
    assert replace(harness, segment_bytes="2000", version=version) == ErrorCode.NONE
    told = described(harness)
    assert told["segment.bytes"] == ("2000", DYNAMIC_TOPIC)
    assert told["retention.ms"] == ("1209600000", DEFAULT)
    assert replace(harness, version=version) == ErrorCode.NONE
    assert {source for _, source in described(harness).values()} == {STATIC, DEFAULT}


def test_deleting_a_setting_restores_the_inherited_value(harness):
    assert change(harness, ("retention.ms", None, DELETE)) == ErrorCode.NONE
    assert described(harness)["retention.ms"] == ("1209600000", DEFAULT)
    assert change(harness, ("retention.ms", "", DELETE)) == ErrorCode.NONE, "again is no error"


def test_lists_are_appended_to_and_subtracted_from(harness):
    assert change(harness, ("cleanup.policy", "compact", APPEND)) == ErrorCode.NONE
    assert described(harness)["cleanup.policy"] == ("delete,compact", DYNAMIC_TOPIC)
    change(harness, ("cleanup.policy", "compact", APPEND))
    assert described(harness)["cleanup.policy"] == ("delete,compact", DYNAMIC_TOPIC)
    assert change(harness, ("cleanup.policy", "delete", SUBTRACT)) == ErrorCode.NONE
    assert described(harness)["cleanup.policy"] == ("compact", DYNAMIC_TOPIC)


@pytest.mark.parametrize("again", ["restart", "crash"])
def test_settings_are_durable_before_the_answer(harness, again):
    change(harness, ("segment.bytes", "2000"), ("retention.ms", None, DELETE))
    getattr(harness, again)()
    told = described(harness)
    assert told["segment.bytes"] == ("2000", DYNAMIC_TOPIC)
    assert told["retention.ms"] == ("1209600000", DEFAULT)
    replace(harness)
    getattr(harness, again)()
    assert described(harness)["segment.bytes"] == ("1073741824", DEFAULT)


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ([("retention.msec", "1")], ErrorCode.INVALID_CONFIG),
        ([("retention.ms", "soon")], ErrorCode.INVALID_CONFIG),
        ([("retention.ms", "-2")], ErrorCode.INVALID_CONFIG),
        ([("cleanup.policy", "destroy", APPEND)], ErrorCode.INVALID_CONFIG),
        ([("compression.type", "brotli")], ErrorCode.INVALID_CONFIG),
        ([("compression.gzip.level", "0")], ErrorCode.INVALID_CONFIG),
        ([("compression.zstd.level", "23")], ErrorCode.INVALID_CONFIG),
        ([("retention.ms", "1", APPEND)], ErrorCode.INVALID_CONFIG),
        ([("retention.ms", "1", SUBTRACT)], ErrorCode.INVALID_CONFIG),
        ([("headrace.storage", "array")], ErrorCode.INVALID_CONFIG),  # chosen at the creation
        ([("retention.ms", None)], ErrorCode.INVALID_REQUEST),
        ([("cleanup.policy", None, APPEND)], ErrorCode.INVALID_REQUEST),
        ([("retention.ms", "1", 4)], ErrorCode.INVALID_REQUEST),
        ([("retention.ms", "1"), ("retention.ms", "2")], ErrorCode.INVALID_REQUEST),
        ([("segment.bytes", "2000"), ("retention.ms", "x")], ErrorCode.INVALID_CONFIG),
    ],
)
@pytest.mark.parametrize("validate_only", [False, True])
def test_an_invalid_change_changes_nothing(harness, changes, error, validate_only):
    before = described(harness)
    assert change(harness, *changes, validate_only=validate_only) == error
    assert described(harness) == before


@pytest.mark.parametrize(
    ("kind", "name", "error"),
    [
        (TOPIC, "none", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (TOPIC, "a b", ErrorCode.INVALID_TOPIC_EXCEPTION),
        (TOPIC, "", ErrorCode.INVALID_TOPIC_EXCEPTION),
        (BROKER, "2", ErrorCode.INVALID_REQUEST),
        (BROKER, "one", ErrorCode.INVALID_REQUEST),
        (8, "2", ErrorCode.INVALID_REQUEST),
        (16, "metrics", ErrorCode.INVALID_REQUEST),
        (32, "group", ErrorCode.INVALID_CONFIG),
        (32, "", ErrorCode.INVALID_REQUEST),
        (99, "t", ErrorCode.INVALID_REQUEST),
    ],
)
def test_resources_that_cannot_be_changed(harness, kind, name, error):
    assert change(harness, ("log.retention.ms", "1"), kind=kind, name=name) == error
    assert replace(harness, kind, name, log_retention_ms="1") == error


def test_levels_of_loggers_are_not_replaced_as_a_whole(harness):
    assert change(harness, ("root", "INFO"), kind=8, name="1") == ErrorCode.INVALID_CONFIG
    assert replace(harness, 8, "1", root="INFO") == ErrorCode.INVALID_REQUEST


def test_an_unknown_name_comes_with_a_suggestion(harness):
    config = IncrementalConfig(name="retention.msec", value="1", config_operation=SET)
    for kind, name, near in ((TOPIC, "t", "retention.ms"), (BROKER, "1", "log.retention.ms")):
        resource = IncrementalResource(resource_type=kind, resource_name=name, configs=[config])
        request = IncrementalAlterConfigsRequest(resources=[resource])
        (response,) = harness.call(request).responses
        assert response.error_code == ErrorCode.INVALID_CONFIG
        assert near in response.error_message


def test_a_deletion_of_an_unknown_setting_succeeds_and_other_changes_apply(harness):
    assert change(harness, ("no.such", None, DELETE), ("segment.bytes", "2000")) == ErrorCode.NONE
    assert described(harness)["segment.bytes"][0] == "2000"
    for kind, name in ((BROKER, "1"), (BROKER, "")):
        assert change(harness, ("no.such", None, DELETE), kind=kind, name=name) == ErrorCode.NONE


def test_validate_only_changes_nothing(harness):
    before = described(harness)
    assert change(harness, ("segment.bytes", "2000"), validate_only=True) == ErrorCode.NONE
    assert replace(harness, segment_bytes="2000", validate_only=True) == ErrorCode.NONE
    changes = ("log.retention.ms", "5")
    assert change(harness, changes, kind=BROKER, name="", validate_only=True) == ErrorCode.NONE
    assert described(harness) == before


def test_a_resource_that_is_named_twice_is_refused_both_times(harness):
    config = IncrementalConfig(name="segment.bytes", value="2000", config_operation=SET)
    twice = [
        IncrementalResource(resource_type=TOPIC, resource_name="t", configs=[config])
        for _ in range(2)
    ]
    responses = harness.call(IncrementalAlterConfigsRequest(resources=twice)).responses
    assert [r.error_code for r in responses] == [ErrorCode.INVALID_REQUEST] * 2


def test_resources_are_changed_or_refused_each_for_itself(harness):
    config = AlterableConfig(name="segment.bytes", value="2000")
    names = ["none", "t"]
    resources = [
        AlterConfigsResource(resource_type=TOPIC, resource_name=name, configs=[config])
        for name in names
    ]
    responses = harness.call(AlterConfigsRequest(resources=resources)).responses
    assert [(r.resource_name, ErrorCode(r.error_code)) for r in responses] == [
        ("none", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ("t", ErrorCode.NONE),
    ]


# In force at once


def test_the_largest_message_is_limited_at_once(harness):
    assert harness.produce("t", b"a" * 1000).error_code == 0
    change(harness, ("max.message.bytes", "500"))
    assert harness.produce("t", b"a" * 1000).error_code == ErrorCode.MESSAGE_TOO_LARGE
    change(harness, ("max.message.bytes", None, DELETE))
    assert harness.produce("t", b"a" * 1000).error_code == 0


def test_segments_are_rolled_at_their_new_size(harness):
    harness.produce("t", b"a" * 1000)
    change(harness, ("segment.bytes", "1500"))
    harness.produce("t", b"a" * 1000)
    logs = [name for name in harness.files.list("t-0") if name.endswith(".log")]
    assert len(logs) == 2


def test_timestamps_are_the_brokers_at_once(harness):
    assert harness.produce("t", b"a").log_append_time_ms == -1
    change(harness, ("message.timestamp.type", "LogAppendTime"))
    assert harness.produce("t", b"a").log_append_time_ms == harness.now_ms


def test_retention_is_applied_at_the_next_look(harness):
    change(harness, ("retention.ms", "-1"))
    harness.produce("t", b"a")
    harness.advance(3_600_000)
    assert harness.fetch("t", 0).error_code == 0
    change(harness, ("retention.ms", "60000"))
    harness.advance(3_600_000)
    assert harness.fetch("t", 0).error_code == ErrorCode.OFFSET_OUT_OF_RANGE


def test_retention_is_checked_at_the_configured_interval():
    harness = BrokerHarness(log_retention_check_interval_ms=10_000)
    harness.create_topic("t", retention_ms="1000")
    harness.advance(1)
    harness.produce("t", b"a")
    harness.advance(9_000)
    assert harness.fetch("t", 0).error_code == 0
    harness.advance(1_000)
    assert harness.fetch("t", 0).error_code == ErrorCode.OFFSET_OUT_OF_RANGE


def test_new_partitions_have_the_new_settings(harness):
    change(harness, ("max.message.bytes", "500"))
    services = harness.broker.services
    topic, admin = services.topics.require("t"), services.topic_admin
    services.steps.run(admin.grow_in_steps(topic, admin.added(topic, 3)))
    part = harness.produce("t", b"a" * 1000, partition=2)
    assert part.error_code == ErrorCode.MESSAGE_TOO_LARGE


# Brokers


def test_a_brokers_settings_are_inherited_by_topics_at_once(harness):
    assert change(harness, ("message.max.bytes", "500"), kind=BROKER, name="1") == ErrorCode.NONE
    assert harness.produce("t", b"a" * 1000).error_code == ErrorCode.MESSAGE_TOO_LARGE
    assert described(harness)["max.message.bytes"] == ("500", DYNAMIC_BROKER)
    change(harness, ("max.message.bytes", "5000"))
    assert harness.produce("t", b"a" * 1000).error_code == 0, "the topic's own setting wins"
    harness.create_topic("new")
    assert harness.produce("new", b"a" * 1000).error_code == ErrorCode.MESSAGE_TOO_LARGE


def test_the_layers_count_in_kafkas_order(harness):
    changes = {"": "3", "1": "2"}
    for name, value in changes.items():
        change(harness, ("log.retention.bytes", value), kind=BROKER, name=name)
    change(harness, ("retention.bytes", "1"))
    inherited = [
        ("log.retention.bytes", "2", DYNAMIC_BROKER),
        ("log.retention.bytes", "3", DYNAMIC_DEFAULT),
        ("log.retention.bytes", "5000", STATIC),
        ("log.retention.bytes", "-1", DEFAULT),
    ]
    own = ("retention.bytes", "1", DYNAMIC_TOPIC)
    assert synonyms(harness, "retention.bytes") == [own, *inherited]
    assert synonyms(harness, "log.retention.bytes", BROKER, "1") == inherited
    for config, kind, name in (
        ("retention.bytes", TOPIC, "t"),
        ("log.retention.bytes", BROKER, "1"),
        ("log.retention.bytes", BROKER, ""),
    ):
        assert change(harness, (config, None, DELETE), kind=kind, name=name) == ErrorCode.NONE
        expected = synonyms(harness, "retention.bytes")[0]
        effective = described(harness)["retention.bytes"]
        assert effective == (expected[1], expected[2])
    assert described(harness)["retention.bytes"] == ("5000", STATIC)


def test_the_settings_of_all_brokers_are_described_under_the_empty_name(harness):
    change(harness, ("log.retention.ms", "77"), kind=BROKER, name="")
    assert described(harness, BROKER, "") == {"log.retention.ms": ("77", DYNAMIC_DEFAULT)}
    assert synonyms(harness, "log.retention.ms", BROKER, "") == [
        ("log.retention.ms", "77", DYNAMIC_DEFAULT)
    ]


@pytest.mark.parametrize("again", ["restart", "crash"])
@pytest.mark.parametrize("name", ["", "1"])
def test_a_brokers_settings_are_durable(harness, again, name):
    change(harness, ("message.max.bytes", "500"), kind=BROKER, name=name)
    getattr(harness, again)()
    assert harness.produce("t", b"a" * 1000).error_code == ErrorCode.MESSAGE_TOO_LARGE
    assert replace(harness, BROKER, name) == ErrorCode.NONE
    getattr(harness, again)()
    assert harness.produce("t", b"a" * 1000).error_code == 0


@pytest.mark.parametrize(
    "name",
    [
        "broker.id",
        "node.id",
        "num.partitions",
        "durability",
        "log.retention.hours",
        "log.roll.hours",
    ],
)
@pytest.mark.parametrize("resource", ["", "1"])
def test_a_change_of_a_static_setting_is_refused_with_its_name(harness, name, resource):
    config = IncrementalConfig(name=name, value="1", config_operation=SET)
    wanted = IncrementalResource(resource_type=BROKER, resource_name=resource, configs=[config])
    (response,) = harness.call(IncrementalAlterConfigsRequest(resources=[wanted])).responses
    assert response.error_code == ErrorCode.INVALID_REQUEST
    assert "cannot be changed while the broker runs" in response.error_message
    assert name in response.error_message


def test_read_only_configs_are_described_as_read_only(harness):
    told = {c.name: c.read_only for c in configs(harness, BROKER, "1")}
    assert told["broker.id"]
    assert told["num.partitions"]
    assert not told["log.retention.ms"]
    assert not told["message.max.bytes"]


@pytest.mark.parametrize("value", ["x", "-5", ""])
def test_values_that_are_not_acceptable_to_brokers(harness, value):
    for name in ("", "1"):
        error = change(harness, ("message.max.bytes", value), kind=BROKER, name=name)
        assert error == ErrorCode.INVALID_CONFIG


@pytest.mark.parametrize("validate_only", [False, True])
def test_settings_that_do_not_go_with_those_of_a_topic_are_refused(harness, validate_only):
    change(harness, ("min.compaction.lag.ms", "5000"))
    for name in ("", "1"):
        config = ("log.cleaner.max.compaction.lag.ms", "4000")
        error = change(harness, config, kind=BROKER, name=name, validate_only=validate_only)
        assert error == ErrorCode.INVALID_CONFIG
        config = ("log.cleaner.max.compaction.lag.ms", "6000")
        assert change(harness, config, kind=BROKER, name=name, validate_only=validate_only) == 0
    harness.restart()
    two = ("log.cleaner.min.compaction.lag.ms", "7000")
    assert change(harness, two, kind=BROKER, name="1") == (
        ErrorCode.NONE if validate_only else ErrorCode.INVALID_CONFIG
    )


def test_unsupported_kafka_settings_are_refused_with_a_reason(harness):
    config = IncrementalConfig(name="remote.storage.enable", value="true", config_operation=SET)
    resource = IncrementalResource(resource_type=TOPIC, resource_name="t", configs=[config])
    (response,) = harness.call(IncrementalAlterConfigsRequest(resources=[resource])).responses
    assert response.error_code == ErrorCode.INVALID_CONFIG
    assert "not supported" in response.error_message


def test_silent_producers_are_forgotten_after_the_new_time(harness):
    log = harness.broker.services.partitions.require("t", 0).log
    assert log.config.producer_id_expiration_ms != 1234
    change(harness, ("producer.id.expiration.ms", "1234"), kind=BROKER, name="")
    assert log.config.producer_id_expiration_ms == 1234


def test_a_stored_setting_that_is_no_longer_acceptable_is_an_error(harness):
    change(harness, ("log.retention.ms", "77"), kind=BROKER, name="")
    entry = stored(harness.metadata)["config/broker/default"]
    bad = entry.value.replace(b"log.retention.ms", b"log.retention.xs")
    harness.metadata.commit([], [Put(entry.key, bad)])
    with pytest.raises(StorageError, match="config/broker"):
        harness.restart()


class RefusingStore:
    """A metadata store whose disk is full."""

    def __init__(self, store) -> None:
        self._store = store

    def commit(self, checks, operations):
        return resolved(Unavailable("the disk is full"))

    def __getattr__(self, name: str):
        return getattr(self._store, name)


@pytest.mark.parametrize(("kind", "name"), [(TOPIC, "t"), (BROKER, "1"), (BROKER, "")])
def test_settings_that_could_not_be_stored_are_not_in_force(harness, kind, name):
    store = RefusingStore(harness.metadata)
    harness.broker.services.metadata._client.store = store
    config = "max.message.bytes" if kind == TOPIC else "message.max.bytes"
    assert change(harness, (config, "5"), kind=kind, name=name) == ErrorCode.KAFKA_STORAGE_ERROR
    assert harness.produce("t", b"a" * 1000).error_code == 0
    assert described(harness)["max.message.bytes"] == ("1048588", DEFAULT)


def test_the_same_settings_again_are_not_written_again(harness):
    before = stored(harness.metadata).get("brokers/commit/1")
    assert change(harness, ("retention.ms", "1000")) == ErrorCode.NONE
    assert change(harness, ("log.roll.ms", None, DELETE), kind=BROKER, name="") == ErrorCode.NONE
    assert stored(harness.metadata).get("brokers/commit/1") == before


def test_batches_in_flight_are_not_disturbed(harness):
    pending = harness.send(produce_request("t", 0, batch(b"a")))
    change(harness, ("segment.bytes", "2000"))
    harness.sync()
    assert pending.response.responses[0].partition_responses[0].error_code == 0
