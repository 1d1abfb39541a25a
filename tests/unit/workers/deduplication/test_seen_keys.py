"""Keys of `dedupe=` that another process knows, too: `SeenTopic` and `SeenFile`, with a broker in memory."""

from __future__ import annotations

import asyncio
import datetime as dt
import math
import sqlite3
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

import headrace
import headrace.testing
from headrace import App, Broker, SeenFile, SeenTopic
from headrace.errors import ApiError, ConfigError, StorageError, WorkerFailedError
from headrace.protocol.api_keys import ApiKey
from headrace.testing import error
from headrace.types import TopicPartition as Place
from headrace.workers.core.delivery import Delivery
from headrace.workers.deduplication import file_keys, persistence, topic_keys
from headrace.workers.deduplication.file_keys import FileKeys
from headrace.workers.deduplication.keys import MAX_KEY_BYTES, key_text
from headrace.workers.deduplication.topic_keys import TopicKeys
from headrace.workers.failure import refusals
from headrace.workers.output.outbox import HandledKey
from headrace.workers.output.outlet import Outlet

Declared = SeenTopic | SeenFile
KEPT: dict[str, Callable[[Path], Declared]] = {
    "topic": lambda _: SeenTopic(),
    "file": lambda path: SeenFile(path / "deep" / "seen.db"),
}
NOT_LOST: list[Delivery] = ["at_least_once", "exactly_once"]


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker(configs={"group.initial.rebalance.delay.ms": "0"}) as broker:
        broker.create_topic("orders", 2)
        yield broker


@pytest.fixture(params=KEPT)
def seen(request: pytest.FixtureRequest, tmp_path: Path) -> Declared:
    return KEPT[request.param](tmp_path)


def make_app(seen: Any, handled: list[str], **options: Any) -> App:
    app = App(group="billing")

    @app.worker("orders", name="bill", dedupe=str, seen=seen, **options)
    def bill(order: str) -> None:
        handled.append(order)

    return app


def send(broker: Broker, *values: str, partition: int = 0) -> None:
    with headrace.Producer(broker, serde="str") as producer:
        for value in values:
            producer.send("orders", value, partition=partition)


def rewind(broker: Broker) -> None:
    """Have every record come again, as after a death before the commit."""
    with headrace.Admin(broker) as admin:
        admin.reset_offsets("billing", topics=["orders"], to="earliest")


def run(app: App, broker: Broker) -> dict[str, int]:
    before = app.counters["bill"].as_dict()
    with app.test(broker) as t:
        t.wait_idle()
    after = app.counters["bill"].as_dict()
    return {name: after[name] - before[name] for name in after if after[name] != before[name]}


@pytest.mark.parametrize("delivery", NOT_LOST)
def test_another_member_recognises_handled_records(
    broker: Broker, seen: Declared, delivery: Delivery
) -> None:
    handled: list[str] = []
    send(broker, "a", "b", "a")
    send(broker, "c", partition=1)
    first = run(make_app(seen, handled, delivery=delivery), broker)
    assert sorted(handled) == ["a", "b", "c"]
    assert first == {"handled": 3, "skipped": 1, "duplicates": 1}
    rewind(broker)
    send(broker, "d", "b")
    again: list[str] = []
    second = run(make_app(seen, again, delivery=delivery), broker)
    assert again == ["d"]
    assert second == {"handled": 1, "skipped": 5, "duplicates": 5}


def test_the_keys_of_batches_are_kept(broker: Broker, seen: Declared) -> None:
    handled: list[str] = []

    def app_of() -> App:
        app = App(group="billing")

        @app.worker("orders", name="bill", dedupe=str, seen=seen)
        def bill(orders: list[str]) -> None:
            handled.extend(orders)

        return app

    send(broker, *"abcab")
    run(app_of(), broker)
    rewind(broker)
    send(broker, "e")
    assert run(app_of(), broker) == {"handled": 1, "skipped": 5, "duplicates": 5}
    assert handled == [*"abce"]


def test_keys_belong_to_a_group_and_a_worker(broker: Broker, seen: Declared) -> None:
    handled: list[bytes] = []
    app = App(group="billing")
    for name, group in (("bill", "billing"), ("count", "counting")):
        app.worker("orders", name=name, group=group, dedupe=str, seen=seen)(handled.append)
    send(broker, "a", "a")
    run(app, broker)
    assert handled == [b"a", b"a"]


def test_a_handler_that_failed_leaves_no_key(broker: Broker, seen: Declared) -> None:
    calls: list[str] = []
    app = App(group="billing")

    @app.worker("orders", name="bill", dedupe=str, seen=seen, retry=1)
    def bill(order: str) -> None:
        calls.append(order)
        if len(calls) == 1:
            raise ValueError("the first time")

    send(broker, "a")
    with pytest.raises(WorkerFailedError):
        run(app, broker)
    run(app, broker)
    assert calls == ["a", "a"]


def test_a_result_that_is_not_written_leaves_no_key(broker: Broker, seen: Declared) -> None:
    """The key is written after all results of the record. After a crash in between, the record is handled again."""
    app = App(group="billing")
    order: list[str] = []

    @app.worker("orders", name="bill", dedupe=str, seen=seen, retry=1)
    @app.publishes("results", key=lambda _: 1 / 0)
    def bill(value: str) -> str:
        order.append(value)
        return value

    send(broker, "a")
    for _ in range(2):
        with pytest.raises(WorkerFailedError, match="ZeroDivisionError"):
            run(app, broker)
    assert order == ["a", "a"]


# A topic


def keys_in(
    broker: Broker, topic: str = "headrace-seen.billing.bill"
) -> list[tuple[int, bytes, bytes]]:
    with headrace.Consumer(
        broker, isolation_level="read_committed", auto_offset_reset="earliest"
    ) as reader:
        partitions = reader.partitions_for(topic)
        reader.assign(dict.fromkeys(partitions, 0))
        ends, found = reader.end_offsets(partitions), []
        while any((at or 0) < ends[name] for name, at in reader.positions().items()):
            found += [(each.partition, each.key, each.value) for each in reader.poll(1.0)]
    return sorted(found)


@pytest.mark.parametrize("delivery", NOT_LOST)
def test_a_created_key_topic_has_the_documented_configuration(
    broker: Broker, delivery: Delivery
) -> None:
    send(broker, "a", partition=1)
    app = make_app(SeenTopic(retention_s=3600), [], delivery=delivery)
    run(app, broker)
    with headrace.Admin(broker) as admin:
        configs = {
            each.name: each.value for each in admin.configs("headrace-seen.billing.bill").values()
        }
    assert configs["cleanup.policy"] == "compact,delete"
    assert configs["retention.ms"] == "3600000"
    assert keys_in(broker) == [(1, b'["billing","bill","orders",1,"a"]', b"0")]


def test_an_existing_key_topic_is_used_unchanged(broker: Broker) -> None:
    broker.create_topic("mine", 1)
    send(broker, "a", partition=1)
    run(make_app(SeenTopic("mine"), []), broker)
    assert keys_in(broker, "mine") == [(0, b'["billing","bill","orders",1,"a"]', b"0")]


def test_foreign_records_in_the_topic_are_no_keys(broker: Broker) -> None:
    broker.create_topic("mine", 1)
    send(broker, "a")
    with headrace.Producer(broker) as producer:
        for key in (
            None,
            b"",
            b'["billing","bill","orders",0,"a"',
            b'["billing","bill","orders",0,"a]',
            b'["billing","bill","orders",1,"a"]',
            b'["other","bill","orders",0,"a"]',
        ):
            producer.send("mine", b"0", key=key)
    handled: list[str] = []
    run(make_app(SeenTopic("mine"), handled), broker)
    assert handled == ["a"]


def test_a_key_topic_reads_and_keeps_at_most_max_keys(broker: Broker) -> None:
    """The oldest of three keys is forgotten, by the process that wrote it and by the one that reads it."""
    handled: list[str] = []
    seen = SeenTopic(max_keys=2)
    send(broker, "a", "b", "c", "a")
    run(make_app(seen, handled), broker)
    assert handled == [*"abca"]
    send(broker, "a", "c", "b")
    run(make_app(seen, handled), broker)
    assert handled == [*"abcab"], "c and a were the last two"


def test_old_keys_are_not_read(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    handled: list[str] = []
    send(broker, "a")
    run(make_app(SeenTopic(), handled), broker)
    rewind(broker)
    asked: list[int] = []
    find = headrace.aio.Consumer.offsets_for_times

    async def note(self: Any, times: Any) -> Any:
        asked.extend(times.values())
        return await find(self, dict.fromkeys(times, 1 << 50))  # as if the record were older

    monkeypatch.setattr(headrace.aio.Consumer, "offsets_for_times", note)
    now_ms = broker.now_ms()
    run(make_app(SeenTopic(retention_s=60), handled), broker)
    assert handled == ["a", "a"]
    assert all(0 <= at - (now_ms - 60_000) < 60_000 for at in asked)


@pytest.mark.parametrize("kind", KEPT)
def test_a_running_process_forgets_expired_keys(
    broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    place = Place("orders", 0)
    passed_ms = 0

    async def use() -> None:
        nonlocal passed_ms
        outlet = Outlet(broker, "c", {})
        monkeypatch.setattr(outlet, "now_ms", lambda: broker.now_ms() + passed_ms)
        store: TopicKeys | FileKeys
        if kind == "topic":
            declared = SeenTopic(retention_s=600)
            store = TopicKeys(declared, outlet, group="g", worker="w", sources=["orders"])
        else:
            file = SeenFile(tmp_path / "seen.db", retention_s=600)
            store = FileKeys(file, outlet.now_ms, group="g", worker="w")
        await store.prepare()
        assert not await store.known(place, ["a"])
        await store.keep([HandledKey(place, 7, "a")])
        assert await store.known(place, ["a"])
        passed_ms = 601_000
        assert not await store.known(place, ["a"])
        await store.close()
        await outlet.close()

    asyncio.run(use())


def test_a_pattern_does_not_read_the_keys(broker: Broker) -> None:
    broker.create_topic("mine", 1)
    app = App(group="billing")
    for name, seen in (("bill", SeenTopic("mine")), ("count", SeenTopic())):
        app.worker(pattern=".*", name=name, group=name, dedupe=bytes, seen=seen)(lambda _: None)
    send(broker, "a")
    with app.test(broker) as t:
        t.wait_idle()
        assert "headrace-seen.count.count" in broker.topics()
        read = {
            name: {each.topic for each in app.status()[name].partitions} for name in app.counters
        }
    assert read == {"bill": {"orders"}, "count": {"orders", "mine"}}


def test_a_topic_that_is_deleted_is_created_again(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(persistence, "AGAIN_S", 0.01)
    monkeypatch.setattr(topic_keys, "LOOK_S", 0.01)
    handled: list[str] = []
    app = make_app(SeenTopic(), handled)
    send(broker, "a")
    with app.test(broker) as t:
        t.wait_idle()
        with headrace.Admin(broker) as admin:
            admin.delete_topic("headrace-seen.billing.bill")
        send(broker, "b")
        t.wait_idle()
    assert handled == ["a", "b"]
    assert [key for _, key, _ in keys_in(broker)] == [b'["billing","bill","orders",0,"b"]']


def test_a_topic_that_is_deleted_is_created_again_when_keys_are_read(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(persistence, "AGAIN_S", 0.01)
    handled: list[str] = []
    app = make_app(SeenTopic(), handled, request_timeout_ms=500)
    send(broker, "a")
    with app.test(broker) as t:
        t.wait_idle()
        with headrace.Admin(broker) as admin:
            admin.delete_topic("headrace-seen.billing.bill")
        send(broker, "b", partition=1)  # the keys of this partition were not read yet
        t.wait_idle()
    assert handled == ["a", "b"]


def test_a_topic_that_is_created_again_while_its_keys_are_read_ends_no_worker(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The end up to which keys are read is one that the new topic may never have."""
    monkeypatch.setattr(persistence, "AGAIN_S", 0.01)
    monkeypatch.setattr(topic_keys, "POLL_S", 0.01)
    broker.create_topic("mine", 1)
    with headrace.Producer(broker) as producer:
        for _ in range(3):
            producer.send("mine", b"0")
    handled: list[str] = []
    app = make_app(SeenTopic("mine"), handled)
    send(broker, "a")
    with headrace.Producer(broker, transactional_id="x") as holder, headrace.Admin(broker) as admin:
        holder.begin_transaction()
        holder.send("mine", b"0").result()  # readers wait for the end of this transaction
        with app.test(broker) as t:
            counters = app.counters["bill"]
            while not counters.in_flight:
                time.sleep(0.01)
            admin.delete_topic("mine")
            broker.create_topic("mine", 1)
            t.wait_idle()
        holder.abort_transaction()
    assert handled == ["a"]


def test_a_key_topic_that_refuses_keys_stops_the_worker_with_the_reason(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(persistence, "AGAIN_S", 0.01)
    monkeypatch.setattr(refusals, "REFUSED_FOR_MS", 20)
    broker.create_topic("small", 1, configs={"max.message.bytes": "1"})
    handled: list[str] = []
    send(broker, "a")
    with pytest.raises(WorkerFailedError) as stopped:
        run(make_app(SeenTopic("small"), handled, dead_letter=True), broker)
    text = str(stopped.value)
    assert "the record at offset 0 of orders-0 was handled, and its key cannot be written" in text
    assert "the topic 'small'" in text
    assert "Raise the topic's max.message.bytes" in text
    assert handled == ["a"], "a key that cannot be kept is no reason to handle a record again"
    assert "dlq.orders" not in broker.topics()


def test_a_topic_that_may_not_be_created_is_reported_before_anything_is_handled() -> None:
    handled: list[str] = []
    with headrace.testing.Broker() as broker:
        broker.create_topic("orders", 1)
        send(broker, "a")
        broker.faults.on(ApiKey.CREATE_TOPICS, error("TOPIC_AUTHORIZATION_FAILED"))
        with pytest.raises(
            ApiError, match=r"'headrace-seen\.billing\.bill' of seen= cannot be created"
        ) as told:
            run(make_app(SeenTopic(), handled), broker)
    assert "headrace acl create --producer" in str(told.value)
    assert handled == []


def test_a_partition_assigned_again_has_the_keys_of_other_members(
    broker: Broker,
) -> None:
    place = Place("orders", 0)

    async def use() -> None:
        outlet = Outlet(broker, "c", {})
        mine, others = (
            TopicKeys(SeenTopic(), outlet, group="g", worker="w", sources=["orders"])
            for _ in range(2)
        )
        await mine.prepare()
        assert not await mine.known(place, ["a"])
        await others.keep([HandledKey(place, 7, "a")])
        assert not await mine.known(place, ["a"]), (
            "no other member writes keys of an owned partition"
        )
        mine.forget([place])
        assert set(await mine.known(place, ["a", "b"])) == {"a"}
        for each in (mine, others, outlet):
            await each.close()

    asyncio.run(use())


@pytest.mark.parametrize("committed", [True, False])
def test_a_reader_of_keys_waits_for_open_transactions(broker: Broker, *, committed: bool) -> None:
    """The former owner's transaction is decided with its position; its markers may come later."""
    broker.create_topic("mine", 1)
    handled: list[str] = []
    app = make_app(SeenTopic("mine"), handled)
    send(broker, "a")
    with headrace.Producer(broker, transactional_id="former") as former:
        former.begin_transaction()
        former.send("mine", b"0", key=b'["billing","bill","orders",0,"a"]').result()
        with app.test(broker) as t:
            counters = app.counters["bill"]
            while not (counters.in_flight or counters.handled):
                time.sleep(0.01)
            assert handled == []
            (former.commit_transaction if committed else former.abort_transaction)()
            t.wait_idle()
    assert handled == ([] if committed else ["a"])


# A file


def test_the_oldest_keys_of_a_file_are_deleted(
    tmp_path: Path, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_keys, "PRUNE_EVERY", 1)
    monkeypatch.setattr(file_keys, "PRUNE_MAX", 2)
    now_ms = 0

    def now() -> int:
        return now_ms

    async def use() -> None:
        nonlocal now_ms
        declared = SeenFile(tmp_path / "seen.db", retention_s=10, max_keys=3)
        keys = FileKeys(declared, now, group="g", worker="w")
        await keys.prepare()
        for number in range(6):
            now_ms += 1000
            await keys.keep([HandledKey(Place("orders", 0), number, number)])
        assert set(await keys.known(Place("orders", 0), range(9))) == {3, 4, 5}
        now_ms = 15_500  # of 4000, 5000 and 6000 ms the last is younger than ten seconds
        assert set(await keys.known(Place("orders", 1), range(9))) == {5}
        await keys.keep([HandledKey(Place("orders", 0), 9, "new")])
        await keys.close()
        with sqlite3.connect(tmp_path / "seen.db") as connection:
            rows = connection.execute("SELECT worker, key FROM seen ORDER BY at_ms").fetchall()
        connection.close()
        assert rows == [('["g","w"]', b"5"), ('["g","w"]', b'"new"')]

    asyncio.run(use())


def test_many_keys_are_queried_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_keys, "QUESTIONS_MAX", 2)

    async def use() -> None:
        keys = FileKeys(SeenFile(tmp_path / "seen.db"), lambda: 5, group="g", worker="w")
        await keys.prepare()
        await keys.keep([HandledKey(Place("o", 0), number, number) for number in range(5)])
        assert set(await keys.known(Place("o", 0), range(7))) == {*range(5)}
        await keys.close()

    asyncio.run(use())


def test_one_sqlite_transaction_writes_the_keys_of_many_handlers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def use() -> None:
        keys = FileKeys(SeenFile(tmp_path / "seen.db"), lambda: 5, group="g", worker="w")
        await keys.prepare()
        written: list[int] = []
        insert = keys._insert

        def watched(texts: Sequence[bytes], connection: sqlite3.Connection) -> None:
            written.append(len(texts))
            insert(texts, connection)

        monkeypatch.setattr(keys, "_insert", watched)
        await asyncio.gather(*(keys.keep([HandledKey(Place("o", 0), n, n)]) for n in range(20)))
        assert sum(written) == 20
        assert len(written) < 4
        await keys.close()

    asyncio.run(use())


@pytest.mark.parametrize("sync", [True, False])
def test_a_file_is_synced_unless_sync_is_false(tmp_path: Path, *, sync: bool) -> None:
    async def use() -> None:
        keys = FileKeys(SeenFile(tmp_path / "s", sync=sync), lambda: 5, group="g", worker="w")
        await keys.prepare()
        [level] = await keys._use(lambda held: held.execute("PRAGMA synchronous").fetchone())
        assert level == (2 if sync else 1)
        await keys.close()

    asyncio.run(use())


def test_an_unusable_file_is_reported_before_anything_is_handled(
    tmp_path: Path, broker: Broker
) -> None:
    handled: list[str] = []
    send(broker, "a")
    (tmp_path / "text").write_text("no database at all, but something else")
    with sqlite3.connect(tmp_path / "other.db") as other:
        other.execute("CREATE TABLE mine (x)")
    other.close()
    for path, words in (
        (tmp_path / "text", "is no file for seen="),
        (tmp_path / "other.db", "is another program.s database: name another file"),
        (tmp_path, "cannot be opened as a file for seen="),
        (tmp_path / "text" / "below", "cannot be opened as a file for seen="),
    ):
        with pytest.raises(ConfigError, match=words):
            run(make_app(SeenFile(path), handled), broker)
    assert handled == []


def test_a_worker_waits_for_a_locked_file(
    tmp_path: Path, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_keys, "BUSY_TIMEOUT_S", 0.01)
    monkeypatch.setattr(persistence, "AGAIN_S", 0.01)
    handled: list[str] = []
    seen = SeenFile(tmp_path / "seen.db")
    app = make_app(seen, handled)
    refused = threading.Event()
    until_done = persistence.Persistence.until_done

    async def watch(self: Any, action: Any, **rest: Any) -> Any:
        async def attempt() -> Any:
            try:
                return await action()
            except StorageError:
                refused.set()
                raise

        return await until_done(self, attempt, **rest)

    monkeypatch.setattr(persistence.Persistence, "until_done", watch)
    with app.test(broker) as t:
        other = sqlite3.connect(seen.file, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        send(broker, "a")
        assert refused.wait(30)
        other.execute("ROLLBACK")
        other.close()
        t.wait_idle()
    assert handled == ["a"]


# Keys


@pytest.mark.parametrize(
    "key",
    [
        "a",
        'with "quotes"',
        "é",
        "",
        7,
        -(1 << 62),
        1.5,
        True,
        b"\x00\xff",
        ("a", 1, None),
        (("a",), ()),
    ],
)
def test_a_key_has_one_short_text(key: Any) -> None:
    assert key_text(key) == key_text(key)
    assert len(key_text(key)) <= MAX_KEY_BYTES


def test_keys_of_many_types_have_a_text() -> None:
    assert key_text(uuid.UUID(int=1)) == b'"00000000-0000-0000-0000-000000000001"'
    assert key_text(dt.date(2026, 1, 2)) == b'"2026-01-02"'
    long, longer = key_text("x" * 5000), key_text("x" * 5001)
    assert long != longer
    assert len(long) <= MAX_KEY_BYTES
    with pytest.raises(TypeError, match="a function, which seen= cannot keep"):
        key_text(lambda: None)


def test_a_key_without_a_text_is_refused_before_the_handler_runs(
    broker: Broker, seen: Declared
) -> None:
    handled: list[str] = []
    app = App(group="billing")
    app.worker("orders", name="bill", dedupe=lambda _: object(), seen=seen, retry=1)(handled.append)
    send(broker, "a")
    with pytest.raises(WorkerFailedError, match="a object, which seen= cannot keep outside"):
        run(app, broker)
    assert handled == []


# What is declared


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: SeenTopic("a/b"),
        lambda: SeenTopic(""),
        lambda: SeenTopic("x" * 250),
        lambda: SeenTopic(max_keys=0),
        lambda: SeenTopic(retention_s=0),
        lambda: SeenTopic(retention_s=math.inf),
        lambda: SeenFile("x", retention_s=math.inf),
        lambda: SeenFile(""),
        lambda: SeenFile("x", max_keys=0),
        lambda: SeenFile("x", retention_s=-1),
    ],
)
def test_wrong_arguments_are_refused(wrong: Callable[[], object]) -> None:
    with pytest.raises(ConfigError):
        wrong()


def test_any_group_name_gives_a_valid_topic_name() -> None:
    assert SeenTopic().name_for("a b/ü", "bill") == "headrace-seen.a_b__.bill"
    assert len(SeenTopic().name_for("g" * 300, "bill")) == 249


def test_a_key_topic_has_a_default_number_of_partitions(broker: Broker) -> None:
    app = App(group="billing")
    app.worker(pattern="ord.*", name="bill", dedupe=bytes, seen=SeenTopic())(lambda value: None)
    send(broker, "a")
    run(app, broker)
    with headrace.Admin(broker) as admin:
        topic = admin.describe_topic("headrace-seen.billing.bill")
    assert len(topic.partitions) == topic_keys.DEFAULT_PARTITIONS
