"""The admin clients of confluent-kafka and kafka-python: what they change, and what they look at."""

from __future__ import annotations

import gc
import threading
import warnings
from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
    NewPartitions,
    NewTopic,
)

from tests.conformance.clients.observer import FAST_RECONNECT, Observer, wait_until
from tests.fixtures.client_security import kafka_python
from tests.fixtures.targets import Target

with warnings.catch_warnings():
    # kafka-python reads its schemas the old way
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka import KafkaConsumer
    from kafka import TopicPartition as PythonPartition
    from kafka.admin import AlterConfigOp, KafkaAdminClient
    from kafka.admin import ConfigResource as PythonResource
    from kafka.coordinator.assignors.range import RangePartitionAssignor
    from kafka.errors import (
        GroupIdNotFoundError,
        GroupSubscribedToTopicError,
        InvalidConfigurationError,
        InvalidPartitionsError,
        KafkaError,
        OffsetOutOfRangeError,
        PolicyViolationError,
    )

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    # kafka-python leaves sockets to the garbage collector when a broker is away.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
ANSWER_S = 20
BROKER_ID = "1"
FAST_PYTHON = {"reconnect_backoff_ms": 20, "reconnect_backoff_max_ms": 100}


def connecting(target: Target) -> dict[str, object]:
    return {**FAST_RECONNECT, **target.admin_properties}


@pytest.fixture(scope="module")
def confluent(target: Target) -> AdminClient:
    return AdminClient({"bootstrap.servers": target.bootstrap, **connecting(target)})


@pytest.fixture
def python(target: Target) -> Iterator[KafkaAdminClient]:
    # A client of each test's own: after a restart an older client raises NodeNotReadyError until its backoff has ended.
    client = KafkaAdminClient(
        bootstrap_servers=target.bootstrap,
        **FAST_PYTHON,
        **kafka_python(target.admin_properties),
    )
    yield client
    client.close()
    gc.collect()


@pytest.fixture
def topic(request: pytest.FixtureRequest, confluent: AdminClient) -> str:
    """A topic of the test's own, with two partitions."""
    name: str = request.node.name.replace("[", "-").replace("]", "")
    confluent.create_topics([NewTopic(name, 2)])[name].result(ANSWER_S)
    return name


def produce(target: Target, topic: str, count: int, partition: int = 0) -> None:
    producer = Producer({"bootstrap.servers": target.bootstrap, **connecting(target)})
    for number in range(count):
        producer.produce(topic, value=str(number), partition=partition)
    assert producer.flush(ANSWER_S) == 0


def commit(target: Target, group: str, topic: str, *partitions: int) -> None:
    """Commit offset 1 for a group that has no members."""
    consumer = Consumer(
        {"bootstrap.servers": target.bootstrap, "group.id": group, **connecting(target)}
    )
    offsets = [TopicPartition(topic, partition, 1) for partition in partitions]
    consumer.commit(offsets=offsets, asynchronous=False)
    consumer.close()


def error_of(future) -> str:
    with pytest.raises(KafkaException) as raised:
        future.result(ANSWER_S)
    return str(raised.value.args[0].name())


# Partitions


def test_confluent_adds_partitions(confluent: AdminClient, observer: Observer, topic: str) -> None:
    def grow(count: int, **options):
        return confluent.create_partitions([NewPartitions(topic, count)], **options)[topic]

    grow(3, validate_only=True).result(ANSWER_S)
    assert observer.partitions(topic) == 2
    grow(5).result(ANSWER_S)
    wait_until("5 partitions", lambda: observer.partitions(topic) == 5)
    assert error_of(grow(5)) == "INVALID_PARTITIONS"
    assert error_of(grow(4)) == "INVALID_PARTITIONS"
    missing = confluent.create_partitions([NewPartitions("no-such-topic", 3)])["no-such-topic"]
    assert error_of(missing) == "UNKNOWN_TOPIC_OR_PART"


def test_kafka_python_adds_partitions(
    python: KafkaAdminClient, target: Target, observer: Observer, topic: str
) -> None:
    replicas = list(target.broker_ids)
    python.create_partitions({topic: 3}, validate_only=True)
    assert observer.partitions(topic) == 2
    python.create_partitions({topic: {"count": 4, "assignments": [replicas, replicas]}})
    wait_until("4 partitions", lambda: observer.partitions(topic) == 4)
    with pytest.raises(InvalidPartitionsError):
        python.create_partitions({topic: 4})
    with pytest.raises(KafkaError, match=r"(?i)assignment"):
        python.create_partitions({topic: {"count": 6, "assignments": [replicas]}})


class Reader(threading.Thread):
    """A member of a group that records what it reads, until it is stopped."""

    def __init__(
        self, target: Target, group: str, topic: str, seen: set[tuple[int, bytes]]
    ) -> None:
        super().__init__(daemon=True)
        self.target, self.group_id, self.topic, self.seen = target, group, topic, seen
        self.stopping = threading.Event()

    def __enter__(self) -> None:
        self.start()

    def __exit__(self, *_: object) -> None:
        self.stopping.set()
        self.join(ANSWER_S)


class ConfluentReader(Reader):
    def run(self) -> None:
        settings = {
            "client.id": "confluent",
            "auto.offset.reset": "earliest",
            "partition.assignment.strategy": "range",
            "topic.metadata.refresh.interval.ms": 300,
            "heartbeat.interval.ms": 200,
            "session.timeout.ms": 6000,
            **connecting(self.target),
        }
        consumer = Consumer(
            {"bootstrap.servers": self.target.bootstrap, "group.id": self.group_id, **settings}
        )
        consumer.subscribe([self.topic])
        while not self.stopping.is_set():
            message = consumer.poll(0.1)
            if message is not None and message.error() is None:
                self.seen.add((message.partition(), message.value()))
        consumer.close()


class PythonReader(Reader):
    def run(self) -> None:
        consumer = KafkaConsumer(
            self.topic,
            bootstrap_servers=self.target.bootstrap,
            group_id=self.group_id,
            client_id="python",
            auto_offset_reset="earliest",
            partition_assignment_strategy=[RangePartitionAssignor],
            metadata_max_age_ms=300,
            heartbeat_interval_ms=200,
            session_timeout_ms=6000,
            **FAST_PYTHON,
            **kafka_python(self.target.client_properties),
        )
        while not self.stopping.is_set():
            for records in consumer.poll(timeout_ms=100).values():
                self.seen.update((record.partition, record.value) for record in records)
        consumer.close()


def test_a_group_picks_up_new_partitions(
    target: Target, confluent: AdminClient, observer: Observer, topic: str
) -> None:
    group, seen = f"{topic}-group", set[tuple[int, bytes]]()
    with (
        ConfluentReader(target, group, topic, seen),
        PythonReader(target, group, topic, seen),
    ):
        observer.wait_stable(group, {"confluent", "python"}, 2)
        confluent.create_partitions([NewPartitions(topic, 6)])[topic].result(ANSWER_S)
        observer.wait_stable(group, {"confluent", "python"}, 6)
        for partition in range(6):
            produce(target, topic, 1, partition)
        expected = {(partition, b"0") for partition in range(6)}
        wait_until("records of all partitions", lambda: seen == expected)


# Records


def test_confluent_deletes_records(confluent: AdminClient, target: Target, topic: str) -> None:
    produce(target, topic, 10)

    def delete(partition: int, offset: int):
        wanted = TopicPartition(topic, partition, offset)
        (future,) = confluent.delete_records([wanted]).values()
        return future

    assert delete(0, 4).result(ANSWER_S).low_watermark == 4
    assert delete(0, 2).result(ANSWER_S).low_watermark == 4
    assert error_of(delete(0, 11)) == "OFFSET_OUT_OF_RANGE"
    assert error_of(delete(1, 1)) == "OFFSET_OUT_OF_RANGE"
    assert delete(0, -1).result(ANSWER_S).low_watermark == 10  # the high watermark
    target.restart()
    consumer = Consumer(
        {"bootstrap.servers": target.bootstrap, "group.id": "g", **connecting(target)}
    )
    wanted = TopicPartition(topic, 0)
    found = wait_until("offsets", lambda: consumer.get_watermark_offsets(wanted, ANSWER_S))
    consumer.close()
    assert found == (10, 10)


def test_kafka_python_deletes_records(
    python: KafkaAdminClient, confluent: AdminClient, target: Target, topic: str
) -> None:
    produce(target, topic, 5)
    result = python.delete_records({PythonPartition(topic, 0): 3})
    assert result[PythonPartition(topic, 0)]["low_watermark"] == 3
    with pytest.raises(OffsetOutOfRangeError):
        python.delete_records({PythonPartition(topic, 0): 6})
    compacted = NewTopic(f"{topic}-compacted", 1, config={"cleanup.policy": "compact"})
    confluent.create_topics([compacted])[compacted.topic].result(ANSWER_S)
    wait_until("the topic", lambda: compacted.topic in python.list_topics())
    with pytest.raises(PolicyViolationError):
        python.delete_records({PythonPartition(compacted.topic, 0): 0})


# Configs


def described(confluent: AdminClient, kind: str, name: str) -> dict[str, ConfigEntry]:
    (future,) = confluent.describe_configs([ConfigResource(kind, name)]).values()
    entries: dict[str, ConfigEntry] = future.result(ANSWER_S)
    return entries


def value_and_source(entry: ConfigEntry) -> tuple[str | None, ConfigSource]:
    return entry.value, ConfigSource(entry.source)


def changing(confluent: AdminClient, kind: str, name: str, *entries, **options):
    """Change configs; entries are (name, value, operation)."""
    wanted = [
        ConfigEntry(entry, value, incremental_operation=operation)
        for entry, value, operation in entries
    ]
    resource = ConfigResource(kind, name, incremental_configs=wanted)
    (future,) = confluent.incremental_alter_configs([resource], **options).values()
    return future


SET, DELETE = AlterConfigOpType.SET, AlterConfigOpType.DELETE
APPEND, SUBTRACT = AlterConfigOpType.APPEND, AlterConfigOpType.SUBTRACT


def test_confluent_changes_single_configs_of_a_topic(
    confluent: AdminClient, target: Target, topic: str
) -> None:
    def change(*entries, **options):
        return changing(confluent, "topic", topic, *entries, **options)

    def told(config: str) -> tuple[str | None, ConfigSource]:
        return value_and_source(described(confluent, "topic", topic)[config])

    own = ConfigSource.DYNAMIC_TOPIC_CONFIG
    change(("retention.ms", "1234567", SET), ("max.message.bytes", "700", SET)).result(ANSWER_S)
    wait_until("the change", lambda: told("retention.ms") == ("1234567", own))
    change(("cleanup.policy", "compact", APPEND)).result(ANSWER_S)
    wait_until("the change", lambda: told("cleanup.policy") == ("delete,compact", own))
    change(("cleanup.policy", "compact", SUBTRACT)).result(ANSWER_S)
    wait_until("the change", lambda: told("cleanup.policy") == ("delete", own))
    change(("retention.ms", None, DELETE)).result(ANSWER_S)
    wait_until("the change", lambda: told("retention.ms")[1] != own)

    change(("segment.bytes", "2000000", SET), validate_only=True).result(ANSWER_S)
    assert error_of(change(("retention.ms", "soon", SET))) == "INVALID_CONFIG"
    assert error_of(change(("no.such.config", "1", SET))) == "INVALID_CONFIG"
    assert error_of(change(("retention.ms", "1", APPEND))) == "INVALID_CONFIG"
    unknown = changing(confluent, "topic", "no-such-topic", ("retention.ms", "1", SET))
    assert error_of(unknown) == "UNKNOWN_TOPIC_OR_PART"
    assert told("segment.bytes")[1] != own

    errors: list[str] = []
    producer = Producer({"bootstrap.servers": target.bootstrap, **connecting(target)})
    producer.produce(topic, b"x" * 1000, on_delivery=lambda error, _: errors.append(error.name()))
    producer.flush(ANSWER_S)
    assert errors == ["MSG_SIZE_TOO_LARGE"], "in force without a restart"


def test_confluent_replaces_all_configs_of_a_topic(confluent: AdminClient, topic: str) -> None:
    def replace(**configs: str) -> None:
        settings = {name.replace("_", "."): value for name, value in configs.items()}
        resource = ConfigResource("topic", topic, set_config=settings)
        (future,) = confluent.alter_configs([resource]).values()
        future.result(ANSWER_S)

    def own() -> dict[str, str | None]:
        found = described(confluent, "topic", topic)
        source = ConfigSource.DYNAMIC_TOPIC_CONFIG
        return {n: e.value for n, e in found.items() if ConfigSource(e.source) is source}

    replace(retention_ms="1234567", segment_bytes="2000000")
    wait_until("both", lambda: own() == {"retention.ms": "1234567", "segment.bytes": "2000000"})
    replace(retention_ms="7654321")
    wait_until("one", lambda: own() == {"retention.ms": "7654321"})
    replace()
    wait_until("none", lambda: own() == {})


def test_brokers_configs_are_inherited_and_durable(
    confluent: AdminClient, target: Target, topic: str
) -> None:
    config, inherited = "log.retention.bytes", "retention.bytes"

    def told() -> tuple[str | None, ConfigSource]:
        return value_and_source(described(confluent, "topic", topic)[inherited])

    changing(confluent, "broker", BROKER_ID, (config, "4000000", SET)).result(ANSWER_S)
    wait_until("one", lambda: told() == ("4000000", ConfigSource.DYNAMIC_BROKER_CONFIG))
    target.restart()
    wait_until("again", lambda: told() == ("4000000", ConfigSource.DYNAMIC_BROKER_CONFIG))
    entry = described(confluent, "broker", BROKER_ID)[config]
    assert value_and_source(entry) == ("4000000", ConfigSource.DYNAMIC_BROKER_CONFIG)
    assert not entry.is_read_only
    changing(confluent, "broker", BROKER_ID, (config, None, DELETE)).result(ANSWER_S)
    default = {ConfigSource.DEFAULT_CONFIG, ConfigSource.STATIC_BROKER_CONFIG}
    wait_until("none", lambda: told()[1] in default)


def test_brokers_configs_that_are_fixed_are_refused(confluent: AdminClient) -> None:
    refused = changing(confluent, "broker", BROKER_ID, ("num.partitions", "3", SET))
    assert error_of(refused) == "INVALID_REQUEST"
    assert described(confluent, "broker", BROKER_ID)["num.partitions"].is_read_only


@pytest.mark.parametrize("incremental", [True, False])
def test_kafka_python_changes_configs(
    python: KafkaAdminClient, topic: str, *, incremental: bool
) -> None:
    def change(**options) -> str:
        configs = {name.replace("_", "."): value for name, value in options.items()}
        resource = PythonResource("TOPIC", topic, configs=configs)
        return str(python.alter_configs([resource], incremental=incremental)["topic"][topic])

    def own() -> dict[str, str]:
        found = python.describe_configs([PythonResource("TOPIC", topic)])["topic"][topic]
        return {
            name: str(entry["value"])
            for name, entry in found.items()
            if "TOPIC" in str(entry.get("config_source", entry.get("source"))).upper()
        }

    change(retention_ms="1234567", segment_bytes="2000000")
    # Without increments the client adds what else it finds changed, as what was set for the broker.
    both = {"retention.ms": "1234567", "segment.bytes": "2000000"}
    wait_until("both", lambda: own().items() >= both.items())
    if incremental:
        change(retention_ms=(AlterConfigOp.DELETE, None))
        wait_until("one", lambda: own() == {"segment.bytes": "2000000"})
        change(cleanup_policy=(AlterConfigOp.APPEND, "compact"))
        wait_until("two", lambda: own().get("cleanup.policy") == "delete,compact")
    assert InvalidConfigurationError.__name__ in change(retention_ms="soon")


def test_kafka_python_lists_what_has_configs(
    python: KafkaAdminClient, target: Target, topic: str
) -> None:
    listed = {
        str(kind).upper(): names
        for kind, names in python.list_config_resources(["TOPIC", "BROKER"]).items()
    }
    assert topic in listed["TOPIC"]
    assert listed["BROKER"] == list(map(str, target.broker_ids))


# Groups and offsets


def test_confluent_deletes_groups(
    confluent: AdminClient, target: Target, observer: Observer, topic: str
) -> None:
    group, live = f"{topic}-gone", f"{topic}-live"
    commit(target, group, topic, 0, 1)
    member = Consumer(
        {"bootstrap.servers": target.bootstrap, "group.id": live, **connecting(target)}
    )
    member.subscribe([topic])
    try:
        wait_until("a partition", lambda: member.poll(0.1) or member.assignment())
        futures = confluent.delete_consumer_groups([group, live, "no-such-group"])
        futures[group].result(ANSWER_S)
        assert error_of(futures[live]) == "NON_EMPTY_GROUP"
        assert error_of(futures["no-such-group"]) == "GROUP_ID_NOT_FOUND"
    finally:
        member.close()
    assert observer.committed(group, topic) == {}
    target.restart()
    assert observer.committed(group, topic) == {}


def test_kafka_python_deletes_groups_and_offsets(
    python: KafkaAdminClient, target: Target, observer: Observer, topic: str
) -> None:
    group = f"{topic}-group"
    commit(target, group, topic, 0, 1)
    result = python.delete_group_offsets(group, [PythonPartition(topic, 0)])
    assert result[PythonPartition(topic, 0)].errno == 0
    assert observer.committed(group, topic) == {1: 1}

    member = Consumer(
        {"bootstrap.servers": target.bootstrap, "group.id": group, **connecting(target)}
    )
    member.subscribe([topic])
    try:
        wait_until("a partition", lambda: member.poll(0.1) or member.assignment())
        result = python.delete_group_offsets(group, [PythonPartition(topic, 1)])
        assert result[PythonPartition(topic, 1)] is GroupSubscribedToTopicError
        assert python.delete_groups([group])[group] == "NonEmptyGroupError"
    finally:
        member.close()
    assert python.delete_groups([group])[group] == "OK"
    assert python.delete_groups([group])[group] == "GroupIdNotFoundError"
    with pytest.raises(GroupIdNotFoundError):
        python.delete_group_offsets(group, [PythonPartition(topic, 1)])


# Views


def test_kafka_python_looks_at_log_directories(
    python: KafkaAdminClient, target: Target, topic: str
) -> None:
    produce(target, topic, 10)

    def sizes(broker) -> dict[int, int]:
        (directory,) = broker["log_dirs"] if "log_dirs" in broker else broker["results"]
        in_memory = target.name == "cluster"
        assert (directory["usable_bytes"] > 0) is not in_memory
        assert directory["usable_bytes"] <= directory["total_bytes"]
        return {
            part["partition_index"]: part["partition_size"]
            for each in directory["topics"]
            if each["name"] == topic
            for part in each["partitions"]
        }

    def are_replicated() -> bool:
        found = [sizes(broker) for broker in python.describe_log_dirs({topic: [0, 1]})]
        assert all(each.keys() == {0, 1} for each in found)
        return len(found) == len(target.broker_ids) and all(
            each[0] > 0 == each[1] for each in found
        )

    wait_until("the records at all brokers", are_replicated)


def test_kafka_python_pages_through_topics(python: KafkaAdminClient, topic: str) -> None:
    seen, cursor = [], None
    for _ in range(3):
        page = python.describe_topic_partitions([topic], response_partition_limit=1, cursor=cursor)
        seen += [part["partition_index"] for t in page["topics"] for part in t["partitions"]]
        cursor = page["next_cursor"]
        if cursor is None:
            break
    assert seen == [0, 1]
