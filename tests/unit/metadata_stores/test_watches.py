"""The conformance suite of metadata stores: watches, which read the change log."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from headrace.metadata_stores import change_log
from headrace.metadata_stores.memory import MemoryMetadata, MemoryMetadataStore
from headrace.metadata_stores.sessions import SimulatedMetadataStore
from headrace.ports import Check, Conflict, Delete, MetadataBatch, MetadataStore, Put
from tests.fixtures.metadata_stores import Seen, commit, stored, watch


def test_a_watch_begins_with_a_snapshot_of_the_entries(store: MetadataStore):
    commit(store, [], [Put("t/b", b"2"), Put("t/a", b"1"), Put("u", b"3")])
    seen = Seen()
    watch(store, seen)
    (batch,) = seen.batches
    assert batch.snapshot
    assert list(batch.puts) == list(stored(store, "").values())
    assert list(batch.deletes) == []


def test_a_watch_without_entries_begins_with_an_empty_snapshot(store: MetadataStore):
    seen = Seen()
    watch(store, seen)
    assert [(b.snapshot, list(b.puts)) for b in seen.batches] == [(True, [])]


def test_a_watch_gets_one_batch_for_each_commit(store: MetadataStore):
    seen = Seen()
    watch(store, seen)
    commit(store, [], [Put("t/b", b"1"), Put("u", b"1"), Put("t/a", b"1")])
    commit(store, [], [Put("u", b"2")])
    commit(store, [], [Delete("t/b"), Delete("t/never"), Put("t/a", b"2")])
    told = [([e.key for e in b.puts], list(b.deletes)) for b in seen.batches[1:]]
    assert told == [(["t/a", "t/b", "u"], []), (["u"], []), (["t/a"], ["t/b"])]
    assert list(seen.known.values()) == list(stored(store, "").values())


def test_a_watch_gets_no_commit_that_was_not_applied(store: MetadataStore):
    seen = Seen()
    watch(store, seen)
    with pytest.raises(Conflict):
        commit(store, [Check("a", "exists")], [Put("b", b"")])
    with pytest.raises(ValueError, match="key"):
        commit(store, [], [Put("", b"")])
    commit(store, [], [Put("a", b""), Delete("a")])
    assert len(seen.batches) == 1


def test_an_ended_watch_receives_no_commit(store: MetadataStore):
    seen, other = Seen(), Seen()
    end = watch(store, seen)
    watch(store, other)
    end()
    end()
    commit(store, [], [Put("a", b"")])
    assert (len(seen.batches), len(other.batches)) == (1, 2)


def test_a_callback_may_commit_itself(store: MetadataStore):
    seen = Seen()
    running: list[str] = []

    def follow(batch: MetadataBatch) -> None:
        assert not running, "one callback at a time"
        running.append("follow")
        for entry in batch.puts:
            if len(entry.value) < 5:
                commit(store, [Check(entry.key, entry.version)], [Put("k", entry.value + b"x")])
        running.clear()

    watch(store, follow)
    watch(store, seen)
    commit(store, [], [Put("k", b"")])
    assert seen.known["k"].value == b"xxxxx"
    assert stored(store).get("k") == seen.known["k"]


def test_a_callback_may_watch_and_end_watches(store: MetadataStore):
    inner, outer = Seen(), Seen()
    ends: list[Callable[[], object]] = []

    def once(batch: MetadataBatch) -> None:
        outer(batch)
        if not batch.snapshot:
            watch(store, inner)
            ends[0]()

    ends.append(watch(store, once))
    commit(store, [], [Put("a", b"1")])
    commit(store, [], [Put("a", b"2")])
    assert [b.snapshot for b in outer.batches] == [True, False]
    assert [b.snapshot for b in inner.batches] == [True, False]
    assert inner.known["a"].value == b"2"


# A reader behind the newest commit


def test_a_slow_reader_receives_every_commit_in_order(store: MetadataStore):
    seen = Seen()

    def slow(batch: MetadataBatch) -> None:
        seen(batch)
        if batch.snapshot:  # the reader is busy while others commit
            for number in range(50):
                commit(store, [], [Put("k", b"%d" % number), Delete("gone")])

    watch(store, slow)
    assert [entry.value for b in seen.batches[1:] for entry in b.puts] == [
        b"%d" % number for number in range(50)
    ]
    assert seen.snapshots == 1


@pytest.mark.parametrize("many", [change_log.ENTRIES_LIMIT, change_log.ENTRIES_LIMIT + 1])
@pytest.mark.parametrize("store", ["memory", "sqlite", "simulated"], indirect=True)
def test_a_reader_away_for_longer_than_the_log_is_kept_gets_a_snapshot(
    store: MetadataStore, many: int
):
    seen = Seen()

    def away(batch: MetadataBatch) -> None:
        seen(batch)
        if batch.snapshot and not seen.known:
            for number in range(many):
                commit(store, [], [Put(f"k{number % 7}", b"%d" % number), Delete(f"k{number % 3}")])

    watch(store, away)
    commit(store, [], [Put("after", b"")])
    assert seen.snapshots == 1 + (many > change_log.ENTRIES_LIMIT)
    assert stored(store) == seen.known


def test_the_log_is_bounded_in_bytes(store: MetadataStore):
    seen = Seen()
    value = bytes(400_000)

    def away(batch: MetadataBatch) -> None:
        seen(batch)
        if batch.snapshot and not seen.known:
            for _ in range(3):
                commit(store, [], [Put("large", value)])

    watch(store, away)
    assert seen.snapshots == 2
    assert set(seen.known) == {"large"}


def test_two_readers_see_the_same_commits_in_the_same_order(store: MetadataStore):
    first, second = Seen(), Seen()
    watch(store, first)
    commit(store, [], [Put("a", b"1")])
    watch(store, second)
    commit(store, [], [Put("a", b"2"), Put("b", b"1")])
    commit(store, [], [Delete("a")])
    assert first.batches[-2:] == second.batches[-2:]
    assert first.known == second.known == stored(store)


@pytest.mark.parametrize("kind", [MemoryMetadataStore, SimulatedMetadataStore])
def test_every_session_sees_the_commits_of_the_others(kind: type[SimulatedMetadataStore]):
    content = MemoryMetadata()
    sessions = [kind(content) for _ in range(3)]
    readers = [Seen() for _ in sessions]
    for session, reader in zip(sessions, readers, strict=True):
        watch(session, reader)
    for number, session in enumerate(sessions):
        commit(session, [], [Put(f"k{number}", b""), Put("all", b"%d" % number)])
    for reader in readers:
        assert set(reader.known) == {"k0", "k1", "k2", "all"}
        assert [len(batch.puts) for batch in reader.batches] == [0, 2, 2, 2]
    for session in sessions:
        session.close()
    assert not content.listeners
