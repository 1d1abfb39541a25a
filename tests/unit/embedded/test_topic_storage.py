"""A topic names the storage of its records. The name is in the metadata, and a reopened broker obeys it."""

from __future__ import annotations

from typing import ClassVar

import pytest

from headrace.clients.admin.blocking import Admin
from headrace.clients.producer.blocking import Producer
from headrace.embedded.broker import Broker
from headrace.errors import ApiError, ConfigError, ErrorCode, HeadraceError
from headrace.storage.os_files import OsFileSystem
from headrace.storage.registry import STORAGES, register_storage
from headrace.storage.segment_files import ArraySegment
from headrace.types import TopicPartition


class Recorded(ArraySegment):
    """A storage of the user's own that records its calls."""

    all: ClassVar[list[Recorded]] = []

    def __init__(self) -> None:
        super().__init__()
        self.all.append(self)

    def roll(self) -> Recorded:
        return Recorded()


@pytest.fixture(autouse=True)
def registered():
    Recorded.all.clear()
    register_storage("recorded", Recorded)


def values(broker: Broker, topic: str = "t", offset: int = 0) -> list[bytes]:
    return [record.value for record in broker.read(topic, 0, offset)]


@pytest.mark.parametrize(
    ("where", "storage"),
    [(where, name) for where in ("memory", "disk") for name in ("array", "linked", "recorded")]
    + [("disk", "files")],
)
def test_records_go_through_every_storage(tmp_path, where, storage) -> None:
    with Broker(tmp_path if where == "disk" else None) as broker:
        broker.create_topic("t", 2, storage=storage, configs={"segment.bytes": "300"})
        with Producer(broker, linger_ms=0) as producer:
            for number in range(20):
                producer.send("t", b"%02d" % number * 20, partition=0).result()
        assert values(broker) == [b"%02d" % number * 20 for number in range(20)]
        with Admin(broker) as admin:
            assert admin.configs("t")["headrace.storage"].value == storage
            admin.truncate("t", {0: 13})
        assert len(values(broker, offset=13)) == 7
        broker.delete_topic("t")
        broker.create_topic("t", storage=storage)
        assert values(broker) == []
    on_disk = list(tmp_path.glob("t-0/*.log"))
    assert not on_disk
    assert (len(Recorded.all) > 10) == (storage == "recorded")


def test_a_storage_of_the_program_can_hold_a_compacted_topic() -> None:
    with Broker(configs={"log.cleaner.backoff.ms": "1"}) as broker:
        settings = {
            "cleanup.policy": "compact",
            "segment.bytes": "300",
            "min.cleanable.dirty.ratio": "0.01",
        }
        broker.create_topic("t", storage="recorded", configs=settings)
        for number in range(60):
            broker.publish("t", b"%d" % number, key=b"k%d" % (number % 3))
        for _ in range(2000):
            if len(values(broker)) < 20:
                break
            with broker._runtime.condition:
                broker._runtime.wait(broker.now_ms() + 5)
                broker._runtime.pump()
        found = {record.key: record.value for record in broker.read("t", 0, 0)}
        assert found == {b"k0": b"57", b"k1": b"58", b"k2": b"59"}
        assert len(values(broker)) < 20


def test_invalid_storages_are_refused() -> None:
    with Broker() as broker:
        for name, reason in (("files", "needs a directory"), ("nobody's", "no storage is called")):
            with pytest.raises(ApiError, match=reason) as raised:
                broker.create_topic("t", storage=name)
            assert raised.value.code == ErrorCode.INVALID_CONFIG
        assert broker.topics() == []
        broker.create_topic("t", storage="array")
        with (
            Admin(broker) as admin,
            pytest.raises(ApiError, match="chosen when a topic is created"),
        ):
            admin.alter_configs("t", {"headrace.storage": "linked"})


def test_the_choice_is_kept_and_memory_is_empty_after_a_restart(tmp_path) -> None:
    with Broker(tmp_path) as broker:
        broker.create_topic("kept")
        broker.create_topic("quick", 2, storage="recorded")
        broker.publish("kept", b"1")
        broker.publish("quick", b"2", partition=0)
    assert not (tmp_path / "quick-0").exists()
    with Broker(tmp_path) as again:
        assert values(again, "kept") == [b"1"]
        assert values(again, "quick") == []
        before = len(Recorded.all)
        assert again.publish("quick", b"3", partition=1).offset == 0
        with Admin(again) as admin:
            admin.add_partitions("quick", 3)
        again.publish("quick", b"4", partition=2)
        assert len(Recorded.all) == before + 2
        assert values(again, "kept") == [b"1"]


def test_an_unregistered_storage_disables_only_its_own_topics(tmp_path) -> None:
    register_storage("passing", Recorded)
    with Broker(tmp_path) as broker:
        broker.create_topic("kept")
        broker.create_topic("quick", storage="passing")
    from headrace.storage import registry

    del registry.STORAGES._factories["passing"]
    with Broker(tmp_path) as again:
        again.publish("kept", b"1")
        with (
            Producer(again, delivery_timeout_ms=300, request_timeout_ms=200) as producer,
            pytest.raises(HeadraceError, match="quick"),
        ):
            producer.send("quick", b"2", partition=0).result()


def test_a_log_directory_of_ones_own_outlives_the_broker(tmp_path) -> None:
    register_storage("other-disk", lambda: OsFileSystem(tmp_path / "other"))
    with Broker(tmp_path / "data") as broker:
        broker.create_topic("t", storage="other-disk")
        broker.publish("t", b"1")
    assert list((tmp_path / "other" / "t-0").glob("*.log"))
    with Broker(tmp_path / "data") as again:
        assert values(again) == [b"1"]
        assert again.publish("t", b"2").offset == 1


def test_a_failing_storage_disables_only_its_own_topics() -> None:
    class Failing(ArraySegment):
        def append(self, buffers) -> None:
            raise RuntimeError("no more")

    register_storage("failing", Failing)
    with Broker() as broker:
        broker.create_topic("good")
        broker.create_topic("bad", storage="failing")
        with Producer(broker, delivery_timeout_ms=300, request_timeout_ms=200) as producer:
            with pytest.raises(HeadraceError, match="no more"):
                producer.send("bad", b"1").result()
            assert producer.send("good", b"1").result().offset == 0


def test_a_server_in_memory_keeps_the_others_apart() -> None:
    """Topics of one storage share a log directory, which operators see by its name."""
    with Broker() as broker:
        broker.create_topic("a", storage="array")
        broker.create_topic("b", storage="array")
        broker.create_topic("c")
        for topic in "abc":
            broker.publish(topic, b"x")
        dirs = dict(broker._core.services.log_store.dirs.named)
        assert sorted(dirs) == ["memory", "memory:array"]
        array = dirs["memory:array"]
        assert array is not None
        assert set(array.logs.logs) == {TopicPartition("a", 0), TopicPartition("b", 0)}


class Unnamed(ArraySegment):
    """A storage that is not registered."""

    made: ClassVar[list[Unnamed]] = []

    def __init__(self) -> None:
        super().__init__()
        self.made.append(self)

    def roll(self) -> Unnamed:
        return Unnamed()


def test_a_storage_is_given_as_a_class_or_a_log_directory(tmp_path) -> None:
    name = f"{Unnamed.__module__}.{Unnamed.__qualname__}"
    with Broker(tmp_path / "broker") as broker:
        before = len(Unnamed.made)
        broker.create_topic("quick", storage=Unnamed)
        broker.create_topic("quick-2", storage=Unnamed)
        elsewhere = OsFileSystem(tmp_path / "elsewhere")
        with Admin(broker) as admin:
            admin.create_topic("far", storage=elsewhere)
        for topic in ("quick", "quick-2", "far"):
            broker.publish(topic, b"1")
        assert len(Unnamed.made) > before
        assert (tmp_path / "elsewhere" / "far-0").is_dir()
        assert broker.configs("quick")["headrace.storage"].value == name
        broker.create_topic("known", storage=Recorded)
        assert broker.configs("known")["headrace.storage"].value == "recorded"
        with pytest.raises(ConfigError, match="another storage has the name"):
            broker.create_topic("other", storage=OsFileSystem(tmp_path / "other"))
        with pytest.raises(ConfigError, match="give the class, Unnamed"):
            broker.create_topic("other", storage=Unnamed())  # type: ignore[arg-type]  # the test needs a wrong type
        with Admin(broker.listen()) as far, pytest.raises(ConfigError, match="pass its name"):
            far.create_topic("other", storage=Unnamed)
        kept = broker.configs("far")["headrace.storage"].value
    register_storage(str(kept), lambda: OsFileSystem(tmp_path / "elsewhere"))
    try:
        with Broker(tmp_path / "broker") as broker:
            assert values(broker, "far") == [b"1"]
            with (
                Producer(broker, delivery_timeout_ms=300, request_timeout_ms=200) as producer,
                pytest.raises(HeadraceError),
            ):
                producer.send("quick", b"2").result()
    finally:
        del STORAGES._factories[str(kept)]
