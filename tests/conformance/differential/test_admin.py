"""The APIs that change partitions, records and configurations, and the lists of an administrator."""

from __future__ import annotations

import pytest

from headrace.protocol.messages import alter_configs, incremental_alter_configs
from headrace.protocol.messages.create_partitions import (
    CreatePartitionsAssignment,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
)
from headrace.protocol.messages.delete_groups import DeleteGroupsRequest
from headrace.protocol.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from headrace.protocol.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
)
from headrace.protocol.messages.describe_groups import DescribeGroupsRequest
from headrace.protocol.messages.describe_log_dirs import (
    DescribableLogDirTopic,
    DescribeLogDirsRequest,
)
from headrace.protocol.messages.list_config_resources import ListConfigResourcesRequest
from headrace.protocol.messages.list_groups import ListGroupsRequest
from tests.conformance.differential.batches import batch
from tests.conformance.differential.pair import Pair, Scenario, Scenarios
from tests.conformance.differential.peer import Peer
from tests.conformance.differential.requests import fetch

pytestmark = pytest.mark.java
scenarios = Scenarios()
TOPIC, LOGGER, GROUP = 2, 8, 32
SET, DELETE, APPEND, SUBTRACT = range(4)
Change = tuple[str, int, str | None]


@scenarios.mark()
def test_headrace_answers_admin_requests_as_kafka_does(pair: Pair, scenario: Scenario) -> None:
    pair.compare(scenario)


@scenarios
def create_partitions(peer: Peer) -> None:
    def ask(
        label: str, *topics: CreatePartitionsTopic, version: int = 3, validate_only: bool = False
    ) -> None:
        request = CreatePartitionsRequest(
            topics=list(topics), timeout_ms=10_000, validate_only=validate_only
        )
        peer.ask(label, request, version)

    def topic(name: str, count: int, *assignments: list[int]) -> CreatePartitionsTopic:
        rows = [CreatePartitionsAssignment(broker_ids=ids) for ids in assignments] or None
        return CreatePartitionsTopic(name=name, count=count, assignments=rows)

    for version in peer.range_of(CreatePartitionsRequest):
        name = f"grow-{version}"
        peer.create(name)
        ask("validate only", topic(name, 2), version=version, validate_only=True)
        ask("two", topic(name, 2), version=version)
        ask("the same", topic(name, 2), version=version)
        ask("fewer", topic(name, 1), version=version)
        for count in (0, -1, -5):
            ask(f"{count}", topic(name, count), version=version)
        ask("unknown", topic("grow-nowhere", 3), version=version)
        ask("bad name", topic("a/b", 3), version=version)
        ask("twice", topic(name, 5), topic(name, 6), version=version)
        ask("assigned", topic(name, 3, [1]), version=version)
        ask("assigned to no broker", topic(name, 4, []), version=version)
        ask("assigned to another", topic(name, 4, [7]), version=version)
        ask("too few assigned", topic(name, 5, [1]), version=version)
        ask("too many assigned", topic(name, 4, [1], [1]), version=version)
        ask("assigned twice to one", topic(name, 4, [1, 1]), version=version)
        ask("assigned to two unknown", topic(name, 4, [7, 8]), version=version)
        ask("one assigned to no broker", topic(name, 5, [1], []), version=version)
        ask("one assigned to another", topic(name, 5, [1], [7]), version=version)
        ask("assigned to -1", topic(name, 4, [-1]), version=version)
        ask(
            "none assigned",
            CreatePartitionsTopic(name=name, count=4, assignments=[]),
            version=version,
        )
        ask("assigned to two", topic(name, 4, [1, 7]), version=version)
        ask("none", version=version)


@scenarios
def delete_records(peer: Peer) -> None:
    topic = "delete-records"
    peer.create(topic, 2)
    peer.create("delete-records-compacted", cleanup_policy="compact")
    peer.create("delete-records-both", cleanup_policy="compact,delete")
    for name in (topic, "delete-records-compacted", "delete-records-both"):
        for _ in range(4):
            peer.produce(name, batch(b"a", b"b", b"c"))

    def ask(
        label: str, offset: int, partition: int = 0, name: str = topic, version: int = 2
    ) -> None:
        wanted = DeleteRecordsPartition(partition_index=partition, offset=offset)
        request = DeleteRecordsRequest(
            topics=[DeleteRecordsTopic(name=name, partitions=[wanted])], timeout_ms=10_000
        )
        peer.ask(label, request, version)

    for version in peer.range_of(DeleteRecordsRequest):
        for offset in (0, 1 + version, 4 + version, 2, 13, -2):
            ask(f"to {offset}", offset, version=version)
        ask("unknown topic", 1, name="delete-records-nowhere", version=version)
        ask("bad name", 1, name="a/b", version=version)
        ask("unknown partition", 1, 9, version=version)
        ask("empty partition", -1, 1, version=version)
        ask("compacted", 1, name="delete-records-compacted", version=version)
        ask("compacted and deleted", 1, name="delete-records-both", version=version)
        ask("internal", 0, name="__consumer_offsets", version=version)
    for offset in (0, 5, 6, 11, 12):
        peer.ask(f"fetch {offset}", fetch(topic, offset), 11)
    ask("all", -1)
    peer.ask("fetch from the end", fetch(topic, 12), 11)


def described(peer: Peer, label: str, name: str, *keys: str) -> None:
    """Note the configuration of a topic, after the broker has applied all changes so far."""
    mark = str(1_000 + len(peer.steps))
    change = incremental_alter_configs.AlterConfigsResource(
        resource_type=TOPIC,
        resource_name=f"{name}-mark",
        configs=[
            incremental_alter_configs.AlterableConfig(
                name="retention.ms", config_operation=SET, value=mark
            )
        ],
    )
    peer.quiet(incremental_alter_configs.IncrementalAlterConfigsRequest(resources=[change]))
    mine = description(f"{name}-mark", "retention.ms")
    # Kafka applies changes in their order, a moment after it has answered.
    peer.wait_for("applied", lambda: peer.quiet(mine, 4).results[0].configs[0].value == mark)
    peer.ask(f"described: {label}", description(name, *keys), 4)


def description(name: str, *keys: str) -> DescribeConfigsRequest:
    resource = DescribeConfigsResource(
        resource_type=TOPIC, resource_name=name, configuration_keys=list(keys)
    )
    return DescribeConfigsRequest(resources=[resource], include_synonyms=True)


@scenarios
def incremental_alter(peer: Peer) -> None:
    topic = "incremental"
    peer.create(topic, retention_ms="1000")
    peer.create(f"{topic}-mark")

    def ask(
        label: str,
        *changes: tuple[str, int, str | None],
        name: str = topic,
        kind: int = TOPIC,
        version: int = 1,
        validate_only: bool = False,
    ) -> None:
        resource = incremental_alter_configs.AlterConfigsResource(
            resource_type=kind,
            resource_name=name,
            configs=[
                incremental_alter_configs.AlterableConfig(
                    name=key, config_operation=operation, value=value
                )
                for key, operation, value in changes
            ],
        )
        request = incremental_alter_configs.IncrementalAlterConfigsRequest(
            resources=[resource], validate_only=validate_only
        )
        peer.ask(label, request, version)
        if kind == TOPIC and name == topic:
            described(peer, label, topic, "retention.ms", "cleanup.policy", "max.message.bytes")

    for version in (0, 1):
        ask("set", ("retention.ms", SET, "77"), version=version)
        ask(
            "set two",
            ("retention.ms", SET, "78"),
            ("max.message.bytes", SET, "5000"),
            version=version,
        )
        ask("delete", ("retention.ms", DELETE, None), version=version)
        ask("delete what is not set", ("retention.ms", DELETE, None), version=version)
        ask("append", ("cleanup.policy", APPEND, "compact"), version=version)
        ask("append again", ("cleanup.policy", APPEND, "compact"), version=version)
        ask("subtract", ("cleanup.policy", SUBTRACT, "delete"), version=version)
        ask("subtract what is not there", ("cleanup.policy", SUBTRACT, "delete"), version=version)
        ask("subtract the last", ("cleanup.policy", SUBTRACT, "compact"), version=version)
        ask("delete the list", ("cleanup.policy", DELETE, ""), version=version)
    ask("append to a number", ("retention.ms", APPEND, "1"))
    ask("unknown operation", ("retention.ms", 9, "1"))
    ask("unknown key", ("no.such", SET, "1"))
    ask("delete an unknown key", ("no.such", DELETE, None))
    ask("delete an unknown key and set", ("no.such", DELETE, None), ("retention.ms", SET, "6"))
    ask("append to an unknown key", ("no.such", APPEND, "1"))
    ask("bad value", ("retention.ms", SET, "soon"))
    ask("null value", ("retention.ms", SET, None))
    ask("good and bad", ("retention.ms", SET, "5"), ("no.such", SET, "1"))
    ask("twice", ("retention.ms", SET, "5"), ("retention.ms", SET, "6"))
    ask("nothing")
    ask("validate only", ("retention.ms", SET, "99"), validate_only=True)
    ask("unknown topic", ("retention.ms", SET, "5"), name="incremental-nowhere")
    ask("bad name", ("retention.ms", SET, "5"), name="a/b")
    ask("empty name", ("retention.ms", SET, "5"), name="")
    for kind in (0, 1, 3, 127):
        ask(f"type {kind}", ("retention.ms", SET, "5"), kind=kind)


@scenarios
def levels_of_loggers(peer: Peer) -> None:
    def ask(label: str, *changes: Change, name: str = "1", validate_only: bool = False) -> None:
        configs = [
            incremental_alter_configs.AlterableConfig(name=key, config_operation=kind, value=value)
            for key, kind, value in changes
        ]
        resource = incremental_alter_configs.AlterConfigsResource(
            resource_type=LOGGER, resource_name=name, configs=configs
        )
        request = incremental_alter_configs.IncrementalAlterConfigsRequest(
            resources=[resource], validate_only=validate_only
        )
        peer.ask(label, request)
        peer.ask(f"described: {label}", describe("1", "root"))

    def describe(name: str, *keys: str) -> DescribeConfigsRequest:
        resource = DescribeConfigsResource(
            resource_type=LOGGER, resource_name=name, configuration_keys=list(keys) or None
        )
        return DescribeConfigsRequest(
            resources=[resource], include_synonyms=True, include_documentation=True
        )

    ask("set", ("root", SET, "WARN"))
    for version in peer.range_of(DescribeConfigsRequest):
        peer.ask("all", describe("1"), version)
        peer.ask("one", describe("1", "root"), version)
        peer.ask("unknown", describe("1", "no.such"), version)
        for name in ("", "7", "x"):
            peer.ask(f"of broker {name!r}", describe(name), version)
    for level in ("FATAL", "TRACE", "DEBUG", "INFO", "ERROR"):
        ask(level, ("root", SET, level))
    for level in ("info", "OFF", "WARNING", "", "7"):
        ask(f"level {level!r}", ("root", SET, level))
    ask("no level", ("root", SET, None))
    ask("unknown", ("no.such", SET, "INFO"))
    ask("delete unknown", ("no.such", DELETE, None))
    ask("no name", ("", SET, "INFO"))
    ask("delete root", ("root", DELETE, None))
    ask("append", ("root", APPEND, "INFO"))
    ask("subtract", ("root", SUBTRACT, "INFO"))
    ask("good and bad", ("root", SET, "INFO"), ("no.such", SET, "INFO"))
    ask("twice", ("root", SET, "INFO"), ("root", SET, "WARN"))
    ask("nothing")
    ask("validate only", ("root", SET, "DEBUG"), validate_only=True)
    for name in ("", "7", "x"):
        ask(f"broker {name!r}", ("root", SET, "DEBUG"), name=name)
    replacing = alter_configs.AlterConfigsResource(
        resource_type=LOGGER,
        resource_name="1",
        configs=[alter_configs.AlterableConfig(name="root", value="DEBUG")],
    )
    peer.ask("replaced", alter_configs.AlterConfigsRequest(resources=[replacing]))
    ask("as it was", ("root", SET, "INFO"))


@scenarios
def alter(peer: Peer) -> None:
    topic = "alter"
    peer.create(topic, retention_ms="1000")
    peer.create(f"{topic}-mark")

    def ask(
        label: str, configs: dict[str, str | None], name: str = topic, version: int = 2, **options
    ) -> None:
        resource = alter_configs.AlterConfigsResource(
            resource_type=TOPIC,
            resource_name=name,
            configs=[
                alter_configs.AlterableConfig(name=key, value=value)
                for key, value in configs.items()
            ],
        )
        peer.ask(label, alter_configs.AlterConfigsRequest(resources=[resource], **options), version)
        if name == topic:
            described(peer, label, topic, "retention.ms", "max.message.bytes")

    for version in peer.range_of(alter_configs.AlterConfigsRequest):
        ask("one", {"retention.ms": "5"}, version=version)
        ask("replaced", {"max.message.bytes": "5000"}, version=version)
        ask("validate only", {"retention.ms": "5"}, version=version, validate_only=True)
        ask("none", {}, version=version)
    ask("unknown key", {"no.such": "1"})
    ask("bad value", {"retention.ms": "x"})
    ask("null value", {"retention.ms": None})
    ask("unknown topic", {"retention.ms": "5"}, name="alter-nowhere")
    ask("bad name", {"retention.ms": "5"}, name="a/b")


@scenarios
def group_configs(peer: Peer) -> None:
    kafkas = "consumer.session.timeout.ms"

    def ask(label: str, name: str, *changes: tuple[str, int, str | None]) -> None:
        resource = incremental_alter_configs.AlterConfigsResource(
            resource_type=GROUP,
            resource_name=name,
            configs=[
                incremental_alter_configs.AlterableConfig(
                    name=key, config_operation=operation, value=value
                )
                for key, operation, value in changes
            ],
        )
        peer.ask(
            label, incremental_alter_configs.IncrementalAlterConfigsRequest(resources=[resource])
        )

    ask("unknown key", "g", ("no.such", SET, "1"))
    ask("delete an unknown key", "g", ("no.such", DELETE, None))
    ask("append to an unknown key", "g", ("no.such", APPEND, "1"))
    ask("nothing", "g")
    ask("empty name", "", (kafkas, SET, "50000"))
    ask("kafka's own", "g", (kafkas, SET, "50000"))
    ask("kafka's own, bad value", "g", (kafkas, SET, "soon"))
    ask("headrace's own", "g", ("headrace.topics", SET, "t"))
    ask("headrace's own, bad value", "g", ("headrace.pattern", SET, "("))
    for name in ("g", "nobody's", ""):
        resource = DescribeConfigsResource(
            resource_type=GROUP, resource_name=name, configuration_keys=None
        )
        peer.ask(f"describe {name!r}", DescribeConfigsRequest(resources=[resource]))
    peer.ask("list", ListConfigResourcesRequest(resource_types=[GROUP]), 1)
    listed = peer.quiet(ListGroupsRequest())
    listed.groups = [group for group in listed.groups if group.group_id == "g"]
    peer.note_answer("groups v5", listed)
    peer.ask("groups described", DescribeGroupsRequest(groups=["g"]), 5)
    peer.ask("deleted group", DeleteGroupsRequest(groups_names=["g"]))
    peer.ask("deleted configs", ListConfigResourcesRequest(resource_types=[GROUP]), 1)


@scenarios
def describe_log_dirs(peer: Peer) -> None:
    topic = "log-dirs"
    peer.create(topic, 2)
    peer.produce(topic, batch(b"a"))
    for version in peer.range_of(DescribeLogDirsRequest):
        for label, topics in {
            "one": [DescribableLogDirTopic(topic=topic, partitions=[0])],
            "both": [DescribableLogDirTopic(topic=topic, partitions=[0, 1])],
            "unknown": [DescribableLogDirTopic(topic="log-dirs-nowhere", partitions=[0])],
            "unknown partition": [DescribableLogDirTopic(topic=topic, partitions=[9])],
            "none": [],
        }.items():
            answer = peer.quiet(DescribeLogDirsRequest(topics=topics), version)
            for result in answer.results:
                result.log_dir = "<directory>" if result.log_dir else ""
                result.total_bytes = min(1, result.total_bytes)
                result.usable_bytes = min(1, result.usable_bytes)
            peer.note_answer(f"{label} v{version}", answer)


@scenarios
def list_config_resources(peer: Peer) -> None:
    peer.create("config-resources")
    for version, types in (
        (0, []),
        (1, [2]),
        (1, [4]),
        (1, [8]),
        (1, [16]),
        (1, [32]),
        (1, [99]),
        (1, [2, 99]),
    ):
        answer = peer.quiet(ListConfigResourcesRequest(resource_types=types), version)
        answer.config_resources = [
            resource
            for resource in answer.config_resources
            if resource.resource_name in {"config-resources", "1"}
        ]
        peer.note_answer(f"types {types} v{version}", answer)
