"""The store of a supervisor: sessions that end with their connections or their silence, and what a broker then sees."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from headrace.errors import StorageError
from headrace.metadata_stores.remote.client import RemoteMetadataStore, read_settings
from headrace.metadata_stores.remote.messages import Messages, encoded
from headrace.metadata_stores.sqlite import SqliteMetadataStore
from headrace.ports import Check, Delete, Put, SessionLost, Unavailable, Unknown
from tests.fixtures.metadata_stores import Seen, commit, settle, stored, watch
from tests.fixtures.remote_store import ServedStore, now_ms


@pytest.fixture
def served(tmp_path: Path) -> Iterator[ServedStore]:
    store = ServedStore(tmp_path / "metadata.sqlite")
    yield store
    store.close()


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def silence(served: ServedStore, ticks: int = 11) -> None:
    """Let the session timeout pass without a message of any broker."""
    for _ in range(ticks):
        served.call(served.server._tick)


def test_a_session_ends_with_its_connection_and_others_see_it(served: ServedStore) -> None:
    one, other = served.connect(), served.connect()
    assert one.session.number < other.session.number
    seen = Seen()
    watch(other, seen)
    commit(one, [], [Put("live", b"1", ephemeral=True), Put("stays", b"2")])
    settle(other)
    assert sorted(seen.known) == ["live", "stays"]
    one.close()
    wait_until(lambda: "live" not in stored(other))
    assert sorted(seen.known) == ["stays"]
    assert isinstance(one.wait(one.renew()), Unavailable)


def test_many_ephemeral_entries_of_one_session_are_all_deleted(served: ServedStore) -> None:
    one, other = served.connect(), served.connect()
    for first in range(0, 250, 50):
        commit(one, [], [Put(f"live/{first + i}", b"", ephemeral=True) for i in range(50)])
    one.close()
    wait_until(lambda: not stored(other))


def test_a_silent_session_ends_and_another_one_begins(served: ServedStore) -> None:
    store = served.connect()
    number = store.session.number
    commit(store, [], [Put("live", b"1", ephemeral=True)])
    silence(served)
    assert isinstance(store.wait(store.commit([], [Put("k", b"")])), SessionLost)
    assert store.session.number == number
    assert store.wait(store.renew()) is None
    assert store.session.number > number
    assert not stored(store)
    commit(store, [Check("live", "absent")], [Put("live", b"2", ephemeral=True)])


def test_a_session_that_sends_something_lasts(served: ServedStore) -> None:
    store = served.connect()
    commit(store, [], [Put("live", b"1", ephemeral=True)])
    for _ in range(3):
        silence(served, ticks=9)
        commit(store, [], [])
    assert "live" in stored(store)


def test_an_entry_belongs_to_the_session_that_has_written_it_last(served: ServedStore) -> None:
    one, other = served.connect(), served.connect()
    commit(one, [], [Put("taken", b"1", ephemeral=True), Put("kept", b"1", ephemeral=True)])
    commit(one, [], [Put("gone", b"1", ephemeral=True), Delete("gone")])
    commit(other, [], [Put("taken", b"2", ephemeral=True), Put("kept", b"2")])
    one.close()
    wait_until(lambda: served.call(lambda: len(served.server._connections)) == 1)
    assert sorted(stored(other)) == ["kept", "taken"]
    other.close()
    last = served.connect()
    wait_until(lambda: sorted(stored(last)) == ["kept"])


def test_a_deletion_that_fails_is_repeated(
    served: ServedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = served.connect(), served.connect()
    commit(one, [], [Put("live", b"1", ephemeral=True)])
    with monkeypatch.context() as patch:
        patch.setattr(
            SqliteMetadataStore, "_apply", lambda *_: (_ for _ in ()).throw(Unavailable("full"))
        )
        one.close()
        wait_until(lambda: served.call(lambda: len(served.server._connections)) == 1)
        assert isinstance(other.wait(other.commit([], [])), Unavailable)
    assert "live" in stored(other)
    silence(served, ticks=1)
    assert not stored(other)


def test_the_lease_begins_when_an_acknowledged_commit_is_sent(served: ServedStore) -> None:
    times = iter([10, 20, 30])
    connection = served.socket()
    read_settings(connection)
    store = RemoteMetadataStore(connection, lambda: next(times))
    assert store.session.acknowledged_ms == 10
    sent = store.commit([], [])
    assert store.session.acknowledged_ms == 10
    store.wait(sent)
    assert store.session.acknowledged_ms == 20
    store.wait(store.commit([Check("none", "exists")], []))
    assert store.session.acknowledged_ms == 20
    store.close()


def test_commits_on_the_way_are_unknown_when_the_supervisor_dies(served: ServedStore) -> None:
    store = served.connect()
    lost: list[bool] = []
    store.on_lost = lambda: lost.append(True)
    held = served.call(lambda: next(iter(served.server._connections)))
    served.call(held._transport.pause_reading)
    outcome, read = store.commit([], [Put("k", b"")]), store.renew()
    served.call(held.abort)
    assert isinstance(store.wait(outcome), Unknown)
    assert isinstance(store.wait(read), Unavailable)
    assert lost == [True]
    assert isinstance(store.wait(store.commit([], [])), Unavailable)


def test_large_commits_and_snapshots_arrive_while_the_reader_is_slow(served: ServedStore) -> None:
    one, other = served.connect(), served.connect()
    sent = [one.commit([], [Put(f"k{i}", bytes([i]) * 400_000)]) for i in range(6)]
    for i, outcome in enumerate(sent):
        assert one.wait(outcome) == {f"k{i}": i + 1}
    assert {key: entry.value[0] for key, entry in stored(other).items()} == {
        f"k{i}": i for i in range(6)
    }


def test_a_broker_that_reads_nothing_loses_its_connection(
    served: ServedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.metadata_stores.remote.server.UNSENT_BYTES_LIMIT", 500_000)
    one, other = served.connect(), served.connect()
    for i in range(6):
        one.wait(one.commit([], [Put(f"k{i}", bytes(400_000))]))
        one.wait(one.commit([], [Delete(f"k{i}")]))
    wait_until(lambda: served.call(lambda: len(served.server._connections)) == 1)
    with pytest.raises(Unavailable):
        other.wait(other.sync())
    assert isinstance(other.wait(other.commit([], [])), Unavailable)


def test_outcomes_and_changes_arrive_on_an_event_loop(served: ServedStore) -> None:
    async def use() -> None:
        store, seen = served.connect(), Seen()
        store.serve_on(asyncio.get_running_loop(), store.run_pending)
        store.watch(seen)
        done = asyncio.Event()
        for i in range(4):
            store.commit([], [Put(f"k{i}", bytes(400_000))]).on_done(lambda _: None)
        store.sync().on_done(lambda _: done.set())
        await asyncio.wait_for(done.wait(), 10)
        assert len(seen.known) == 4
        lost = asyncio.Event()
        store.on_lost = lost.set
        await asyncio.to_thread(served.call, served.server.close)
        await asyncio.wait_for(lost.wait(), 10)

    asyncio.run(use())


def test_the_settings_arrive_first(served: ServedStore) -> None:
    connection = served.socket({"a": ["b"]})
    assert read_settings(connection) == {"a": ["b"]}
    store = RemoteMetadataStore(connection, now_ms)
    store.send(("ready", 0, ["PLAINTEXT://h:1"], "id"))
    settle(store)
    assert served.received == [["ready", 0, ["PLAINTEXT://h:1"], "id"]]
    store.close()


def test_a_broker_without_a_supervisor_ends(served: ServedStore) -> None:
    connection = served.socket()
    served.call(served.server.close)
    assert read_settings(connection) == {}
    with pytest.raises(StorageError, match="has ended"):
        read_settings(connection)
    connection.close()


def test_bytes_that_are_no_message_are_refused() -> None:
    messages = Messages()
    messages.add(encoded(("sync", 1))[:-1])
    assert list(messages) == []
    messages.add(b"]")
    assert list(messages) == [["sync", 1]]
    messages.add(b"\0\0\0\1x")
    with pytest.raises(StorageError, match="cannot be read"):
        list(messages)
    long = Messages()
    long.add(b"\xff\xff\xff\xff")
    with pytest.raises(StorageError, match="at most"):
        list(long)
