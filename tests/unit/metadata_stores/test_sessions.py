"""The conformance suite of metadata stores: sessions and ephemeral entries."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from headrace.metadata_stores.memory import MemoryMetadata, MemoryMetadataStore
from headrace.metadata_stores.sessions import SimulatedMetadataStore, Timeline
from headrace.metadata_stores.sqlite import SqliteMetadataStore
from headrace.ports import (
    Check,
    Conflict,
    Delete,
    MetadataEntry,
    MetadataStore,
    Put,
    SessionLost,
    Unavailable,
)
from tests.fixtures.metadata_stores import Clock, Seen, commit, stored, watch


def test_an_ephemeral_entry_is_an_entry(store: MetadataStore):
    versions = commit(store, [], [Put("live/1", b"a", ephemeral=True), Put("live/2", b"b")])
    assert stored(store).get("live/1") == MetadataEntry("live/1", b"a", versions["live/1"])
    assert [e.key for e in stored(store, "live/").values()] == ["live/1", "live/2"]
    with pytest.raises(Conflict):
        commit(store, [Check("live/1", "absent")], [Put("live/1", b"b", ephemeral=True)])
    again = commit(
        store,
        [Check("live/1", versions["live/1"]), Check("live/2", "exists")],
        [Put("live/1", b"c", ephemeral=True)],
    )
    assert again["live/1"] > versions["live/1"]
    assert len(stored(store, "live/").values()) == 2
    commit(store, [], [Delete("live/1")])
    assert stored(store).get("live/1") is None


def test_a_conflict_undoes_ephemeral_entries_too(store: MetadataStore):
    with pytest.raises(Conflict):
        commit(store, [Check("no", "exists")], [Put("live", b"", ephemeral=True)])
    assert stored(store).get("live") is None


def test_renewing_a_live_session_does_nothing(store: MetadataStore):
    seen, session = Seen(), store.session
    commit(store, [], [Put("live", b"", ephemeral=True)])
    watch(store, seen)
    store.renew()
    assert store.session.number == session.number
    assert len(seen.batches) == 1
    assert stored(store).get("live") is not None


def test_a_lost_session_deletes_only_ephemeral_entries():
    store, seen = SimulatedMetadataStore(), Seen()
    commit(store, [], [Put("live", b"", ephemeral=True), Put("stays", b"")])
    watch(store, seen)
    store.lose_session()
    with pytest.raises(SessionLost):
        commit(store, [], [Put("stays", b"2")])
    assert set(seen.known) == {"live", "stays"}, (
        "a client that has lost its session receives nothing"
    )
    store.down = True
    assert isinstance(store.wait(store.renew()), Unavailable)
    store.down = False
    assert store.wait(store.renew()) is None
    assert set(seen.known) == {"stays"}, "the watch continues in the new session"
    assert store.session.number == 2
    assert [(entry.key, entry.value) for entry in stored(store).values()] == [("stays", b"")]
    assert set(seen.known) == {"stays"}
    commit(store, [Check("live", "absent")], [Put("live", b"", ephemeral=True)])
    assert set(seen.known) == {"live", "stays"}


@pytest.fixture(params=["memory", "sqlite", "simulated"])
def sessions(
    request: pytest.FixtureRequest, tmp_path: Path
) -> Iterator[Callable[[], MetadataStore]]:
    """Close the session there is, and return the next one over the same content."""
    made: list[MetadataStore] = []
    content = MemoryMetadata()

    def following() -> MetadataStore:
        if made:
            made[-1].close()
        if request.param == "sqlite":
            made.append(SqliteMetadataStore(tmp_path / "metadata.db"))
        elif request.param == "simulated":
            made.append(SimulatedMetadataStore(content))
        else:
            made[:] = made or [MemoryMetadataStore()]
        return made[-1]

    yield following
    made[-1].close()


def test_ephemeral_entries_and_watches_end_with_the_session(sessions):
    store = sessions()
    seen = Seen()
    watch(store, seen)
    old = commit(store, [], [Put("live", b"1", ephemeral=True), Put("stays", b"")])
    store = sessions()
    assert list(stored(store)) == ["stays"]
    new = commit(store, [Check("live", "absent")], [Put("live", b"2", ephemeral=True)])
    assert new["live"] > old["live"], "a version never recurs"
    assert len(seen.batches) == 2


@pytest.mark.parametrize(("first", "second"), [(True, False), (False, True)])
def test_the_last_put_determines_whether_an_entry_is_ephemeral(sessions, first, second):
    store = sessions()
    commit(store, [], [Put("a", b"1", ephemeral=first)])
    commit(store, [], [Put("a", b"2", ephemeral=second)])
    entry = stored(store).get("a")
    assert entry is not None
    assert [e.value for e in stored(store).values()] == [b"2"]
    store = sessions()
    assert stored(store).get("a") == (None if second else entry)


def test_a_deleted_ephemeral_entry_can_become_durable(sessions):
    store = sessions()
    commit(store, [], [Put("a", b"1", ephemeral=True), Delete("a"), Put("a", b"2")])
    store = sessions()
    entry = stored(store).get("a")
    assert entry is not None
    assert entry.value == b"2"


def test_a_killed_process_leaves_no_ephemeral_entry(tmp_path: Path):
    script = (
        "import os, sys\n"
        "from headrace.metadata_stores.sqlite import SqliteMetadataStore\n"
        "from headrace.ports import Put\n"
        "store = SqliteMetadataStore(sys.argv[1])\n"
        "store.commit([], [Put('live', b'', ephemeral=True), Put('stays', b'')])\n"
        "os._exit(9)\n"
    )
    path = tmp_path / "metadata.db"
    subprocess.run([sys.executable, "-c", script, str(path)], check=False, timeout=60)
    store = SqliteMetadataStore(path)
    assert list(stored(store)) == ["stays"]
    store.close()


# Sessions over a network


def test_ephemeral_entries_end_with_their_own_session_only():
    content = MemoryMetadata()
    first, second, seen = MemoryMetadataStore(content), SimulatedMetadataStore(content), Seen()
    watch(second, seen)
    commit(first, [], [Put("live/1", b"", ephemeral=True), Put("taken", b"1", ephemeral=True)])
    commit(second, [], [Put("live/2", b"", ephemeral=True), Put("taken", b"2", ephemeral=True)])
    first.close()
    assert set(seen.known) == {"live/2", "taken"}
    assert list(seen.batches[-1].deletes) == ["live/1"]
    second.lose_session()
    assert content.entries() == []


def test_a_session_expires_when_its_connection_is_broken_for_too_long():
    clock, content = Clock(), MemoryMetadata()
    timeline = Timeline(clock)
    store = SimulatedMetadataStore(content, timeline, timeout_ms=100)
    commit(store, [], [Put("live", b"", ephemeral=True)])
    for outage_ms, expires in ((60, False), (99, False), (100, True)):
        store.down = True
        clock.run(timeline, clock.now_ms + outage_ms)
        assert (content.get("live") is None) == expires
        store.down = False
        clock.run(timeline, clock.now_ms + 10)
    assert isinstance(store.wait(store.commit([], [Put("a", b"")])), SessionLost)
    assert store.wait(store.renew()) is None
    assert (store.session.number, store.session.acknowledged_ms) == (2, clock.now_ms)


def test_the_lease_of_a_session_counts_from_the_sending_of_an_acknowledged_write():
    clock = Clock()
    timeline = Timeline(clock)
    store = SimulatedMetadataStore(timeline=timeline, delay_ms=lambda: 10)
    assert store.session.acknowledged_ms == 0
    clock.run(timeline, 100)
    store.commit([], [Put("a", b"")])
    clock.run(timeline, 119)
    assert store.session.acknowledged_ms == 0, "the response is on the way"
    clock.run(timeline, 120)
    assert store.session.acknowledged_ms == 100
    store.commit([Check("a", "absent")], [Put("a", b"")])
    clock.run(timeline, 200)
    store.faults = ["unknown and applied"]
    store.commit([], [Put("a", b"")])
    clock.run(timeline, 300)
    assert store.session.acknowledged_ms == 100, "a write without a response does not count"


def test_the_lease_of_a_store_in_this_process_never_ends(tmp_path: Path):
    stores: list[MetadataStore] = [MemoryMetadataStore(), SqliteMetadataStore(tmp_path / "m.db")]
    for store in stores:
        assert store.session.acknowledged_ms is None
        store.close()


def test_a_renewal_during_an_outage_can_be_repeated():
    clock = Clock()
    timeline = Timeline(clock)
    store = SimulatedMetadataStore(timeline=timeline, delay_ms=lambda: 10)
    store.lose_session()
    renewal = store.renew()
    assert store.renew() is renewal
    clock.run(timeline, 10)
    store.down = True
    assert isinstance(renewal.value, Unavailable)
    clock.run(timeline, 50)
    store.down = False
    assert isinstance(store.wait(store.commit([], [])), SessionLost)
    assert store.wait(store.renew()) is None
    assert store.wait(store.commit([], [Put("a", b"", ephemeral=True)])) == {"a": 1}
    store.close()
    assert store._content.entries() == []
