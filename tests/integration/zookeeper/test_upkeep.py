"""Upkeep of the znodes: the change log and the marks of deleted keys do not grow for ever."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from kazoo.client import KazooClient

from headrace.metadata_stores.change_log import ENTRIES_LIMIT
from headrace.metadata_stores.zookeeper import layout
from headrace.metadata_stores.zookeeper.store import ZooKeeperMetadataStore
from headrace.metadata_stores.zookeeper.upkeep import prune_log
from headrace.ports import Check, Conflict, Delete, Put, versions_of
from tests.fixtures.metadata_stores import Seen, commit, settle, stored, watch
from tests.fixtures.zookeeper import ZooKeeper
from tests.integration.zookeeper.conftest import Open

pytestmark = pytest.mark.java


@pytest.fixture
def hand(single: ZooKeeper, chroot: str) -> Iterator[KazooClient]:
    """Another client, which sees the znodes themselves."""
    client = KazooClient(single.address + chroot)
    client.start_async().wait(30)
    yield client
    client.stop()
    client.close()


def upkeep(store: ZooKeeperMetadataStore) -> None:
    assert store.wait(store.upkeep(marks_kept_ms=0)) is None


def test_old_entries_of_the_change_log_are_deleted(
    single: ZooKeeper, opened: Open, hand: KazooClient
) -> None:
    store, away = opened(single), opened(single)
    seen = Seen()
    watch(store, seen)
    for start in range(0, ENTRIES_LIMIT + 30, 103):
        puts = [Put(f"k{number}", b"") for number in range(start, start + 103)]
        for outcome in [store.commit([], [put]) for put in puts]:
            versions_of(store.wait(outcome))
    path = layout.generation_path(1)
    assert len(hand.get_children(path)) == ENTRIES_LIMIT + 30
    upkeep(store)
    assert len(hand.get_children(path)) == ENTRIES_LIMIT
    commit(store, [], [Put("after", b"")])
    settle(away)
    assert seen.snapshots == 1
    assert seen.known == stored(store) == stored(away) == stored(opened(single))


def test_the_change_log_is_bounded_in_bytes(
    single: ZooKeeper, opened: Open, hand: KazooClient
) -> None:
    store = opened(single)
    for number in range(8):
        commit(store, [], [Put(f"k{number}", bytes(200_000))])
    upkeep(store)
    assert len(hand.get_children(layout.generation_path(1))) == 5
    assert len(stored(opened(single))) == 8


def test_a_reader_behind_the_pruned_log_takes_a_snapshot(
    single: ZooKeeper, opened: Open, hand: KazooClient
) -> None:
    store, seen = opened(single), Seen()
    watch(store, seen)
    commit(store, [], [Put("a", b"1")])
    reader = store._engine._reader
    reader._next = 0  # as if it had been away since the beginning
    hand.delete(layout.change_path(1, 0))
    commit(store, [], [Put("b", b"1")])
    assert seen.snapshots == 2
    assert seen.known == stored(store)


def test_a_mark_is_deleted_when_all_sessions_have_read_past_it(
    single: ZooKeeper, opened: Open, hand: KazooClient
) -> None:
    store, slow = opened(single), opened(single)
    before = commit(store, [], [Put("gone", b"1"), Put("stays", b"1")])["gone"]
    commit(store, [], [Delete("gone")])
    settle(slow)
    commit(store, [], [Put("stays", b"2")])
    path = layout.path_of("gone")
    upkeep(store)
    assert hand.get(path)[0] == layout.mark_data(), "the other session has reported no position"
    commit(slow, [], [Put("stays", b"3")])
    settle(store)
    commit(store, [], [Put("stays", b"4")])
    commit(slow, [], [Put("stays", b"5")])
    assert store.wait(store.upkeep()) is None
    assert hand.exists(path) is not None, "an hour has not passed"
    upkeep(store)
    assert hand.exists(path) is None
    for each in (store, slow):
        settle(each)
        assert "gone" not in each._engine._reader.tree.nodes()
    commit(slow, [Check("gone", "absent")], [Put("gone", b"2")])
    with pytest.raises(Conflict):
        commit(store, [Check("gone", before)], [Put("gone", b"3")])


def test_a_mark_that_is_written_again_stays(single: ZooKeeper, opened: Open) -> None:
    store = opened(single)
    seen = Seen()
    watch(store, seen)
    for number in range(3):
        commit(store, [], [Put("a", b"%d" % number)])
        commit(store, [], [Delete("a")])
        commit(store, [], [Put("b", b"")])
        upkeep(store)
        settle(store)
    version = commit(store, [Check("a", "absent")], [Put("a", b"last")])["a"]
    upkeep(store)
    assert stored(store)["a"].version == version
    assert seen.known == stored(store)
    assert seen.snapshots == 1


def test_another_generation_of_the_change_log_begins_in_time(
    single: ZooKeeper, opened: Open, hand: KazooClient
) -> None:
    store, other = opened(single), opened(single)
    readers = Seen(), Seen()
    watch(store, readers[0])
    watch(other, readers[1])
    commit(store, [], [Put("a", b"1")])
    engine = store._engine
    link = engine._link
    assert link is not None
    asyncio.run_coroutine_threadsafe(
        prune_log(link, engine._reader, generation_limit=0), engine._loop
    ).result(30)
    for number, each in enumerate((other, store, other)):
        commit(each, [], [Put("b", b"%d" % number)])
    upkeep(store)
    assert hand.get_children(layout.CHANGES) == ["0000000002"]
    assert len(hand.get_children(layout.generation_path(2))) == 3
    for each, seen in zip((store, other), readers, strict=True):
        settle(each)
        assert {key: entry.value for key, entry in seen.known.items()} == {"a": b"1", "b": b"2"}
