"""The conformance suite of metadata stores: commits whose response is late or lost, and commits that arrive twice."""

from __future__ import annotations

import sqlite3

import pytest

from headrace.deferred import Deferred
from headrace.metadata_stores.change_log import KeptChanges
from headrace.metadata_stores.memory import MemoryMetadata, MemoryMetadataStore
from headrace.metadata_stores.sessions import Fault, SimulatedMetadataStore, Timeline
from headrace.metadata_stores.sqlite import SqliteMetadataStore
from headrace.ports import (
    Check,
    Conflict,
    Delete,
    MetadataBatch,
    MetadataEntry,
    MetadataStore,
    Put,
    Unavailable,
    Unknown,
)
from tests.fixtures.metadata_stores import Clock, Seen, commit, stored, watch


def breaking(store: MetadataStore, monkeypatch: pytest.MonkeyPatch, fault: Fault) -> None:
    """Let the next commit meet a fault."""
    if isinstance(store, SimulatedMetadataStore):
        store.faults = [fault]
    else:
        assert isinstance(store, SqliteMetadataStore)
        monkeypatch.setattr(store, "_connection", BreakingConnection(store._connection, fault))


class BreakingConnection:
    """A connection whose disk fails once."""

    def __init__(self, connection: sqlite3.Connection, fault: str) -> None:
        self._connection = connection
        self._fault = fault

    def execute(self, statement: str, *arguments: object) -> sqlite3.Cursor:
        fault, broken = self._fault, sqlite3.OperationalError("disk I/O error")
        if fault == "unavailable" and statement.startswith("INSERT"):
            self._fault = ""
            raise broken
        if fault.startswith("unknown") and statement == "COMMIT":
            self._fault = ""
            if fault == "unknown and applied":
                self._connection.execute("COMMIT")
            raise broken
        return self._connection.execute(statement, *arguments)  # type: ignore[arg-type]  # passed on as given

    def __getattr__(self, name: str) -> object:
        return getattr(self._connection, name)


@pytest.mark.parametrize("store", ["sqlite", "simulated"], indirect=True)
def test_an_unavailable_commit_is_not_applied_and_may_be_repeated(store, monkeypatch):
    seen = Seen()
    watch(store, seen)
    breaking(store, monkeypatch, "unavailable")
    with pytest.raises(Unavailable):
        commit(store, [], [Put("a", b"1")])
    assert stored(store).get("a") is None
    assert len(seen.batches) == 1
    commit(store, [Check("a", "absent")], [Put("a", b"1")])
    assert list(stored(store)) == ["a"]


@pytest.mark.parametrize("store", ["sqlite", "simulated"], indirect=True)
@pytest.mark.parametrize(
    ("fault", "applied"), [("unknown and void", False), ("unknown and applied", True)]
)
def test_the_outcome_of_an_unknown_commit_can_be_determined(store, monkeypatch, fault, applied):
    seen = Seen()
    watch(store, seen)
    before = commit(store, [], [Put("fence", b"0")])["fence"]
    breaking(store, monkeypatch, fault)
    with pytest.raises(Unknown):
        commit(store, [Check("fence", before)], [Put("fence", b"1"), Put("a", b"")])
    assert ("a" in seen.known) == applied
    entry = stored(store)["fence"]
    assert (entry.version != before, entry.value) == (applied, b"1" if applied else b"0")
    assert (stored(store).get("a") is not None) == applied
    later = commit(store, [], [Put("later", b"")])["later"]
    assert later > max(e.version for e in stored(store).values() if e.key != "later")
    assert seen.known == stored(store)
    assert seen.snapshots == 1


def test_an_unknown_commit_is_void_when_its_check_has_become_false():
    store = SimulatedMetadataStore()
    before = commit(store, [], [Put("fence", b"0")])["fence"]
    store.faults = ["unknown and late"]
    with pytest.raises(Unknown):
        commit(store, [Check("fence", before)], [Put("fence", b"1"), Put("a", b"")])
    commit(store, [Check("fence", before)], [Put("fence", b"0")])
    assert store.land() == 0
    assert stored(store).get("a") is None


def test_a_file_that_fails_after_an_unknown_commit_is_read_again(tmp_path, monkeypatch):
    store, seen = SqliteMetadataStore(tmp_path / "metadata.sqlite"), Seen()
    watch(store, seen)
    commit(store, [], [Put("a", b"1")])
    breaking(store, monkeypatch, "unknown and applied")
    monkeypatch.setattr(store, "_number", lambda _: store._connection.execute("no SQL"))
    assert isinstance(store.commit([], [Put("a", b"2")]).value, Unknown)
    assert isinstance(store.commit([], [Put("a", b"3")]).value, Unavailable)
    monkeypatch.undo()
    assert commit(store, [], [Put("a", b"4")]) == {"a": 3}
    assert [entry.value for batch in seen.batches for entry in batch.puts] == [b"1", b"2", b"4"]
    store.close()


def test_a_slow_reader_sees_that_an_unknown_commit_has_pruned_the_log(tmp_path, monkeypatch):
    monkeypatch.setattr(KeptChanges.__init__, "__defaults__", (8,))
    store, seen = SqliteMetadataStore(tmp_path / "metadata.sqlite"), Seen()

    def slow(batch: MetadataBatch) -> None:
        seen(batch)
        if batch.snapshot and not seen.known:
            for number in range(8):
                commit(store, [], [Put(f"k{number}", b"")])
            breaking(store, monkeypatch, "unknown and applied")
            assert isinstance(store.commit([], [Put("last", b"")]).value, Unknown)

    watch(store, slow)
    assert seen.snapshots == 2
    assert seen.known == stored(store)
    store.close()


@pytest.mark.parametrize("store", ["sqlite", "simulated"], indirect=True)
def test_a_commit_that_makes_another_void_settles_an_unknown_outcome(store, monkeypatch):
    faults: list[Fault] = ["unknown and void", "unknown and applied"]
    for number, fault in enumerate(faults):
        before = commit(store, [], [Put("fence", b"0")])["fence"]
        breaking(store, monkeypatch, fault)
        with pytest.raises(Unknown):
            commit(store, [Check("fence", before)], [Put("fence", b"1"), Put(f"k{number}", b"")])
        outcome = store.wait(store.commit([Check("fence", before)], [Put("fence", b"void")]))
        assert isinstance(outcome, Conflict) == (stored(store).get(f"k{number}") is not None)


def test_a_commit_that_checks_a_version_takes_effect_once(store: MetadataStore):
    before = commit(store, [], [Put("fence", b"0")])["fence"]
    checks, puts = [Check("fence", before)], [Put("fence", b"1")]
    if isinstance(store, SimulatedMetadataStore):
        store.faults = ["doubled"]
        first = commit(store, checks, puts)
    else:
        first = commit(store, checks, puts)
        with pytest.raises(Conflict):
            commit(store, checks, puts)
    assert stored(store).get("fence") == MetadataEntry("fence", b"1", first["fence"])


def test_a_doubled_commit_without_a_check_is_applied_twice():
    store, seen = SimulatedMetadataStore(), Seen()
    watch(store, seen)
    store.faults = ["doubled"]
    first = commit(store, [], [Put("a", b"1")])["a"]
    assert [entry.version for batch in seen.batches for entry in batch.puts] == [first, first + 1]


# Outages


def delayed(content: MemoryMetadata, timeline: Timeline, delay_ms: int) -> SimulatedMetadataStore:
    return SimulatedMetadataStore(content, timeline, delay_ms=lambda: delay_ms)


def test_an_outcome_arrives_later_and_the_change_before_it():
    clock = Clock()
    timeline, content = Timeline(clock), MemoryMetadata()
    writer, reader, seen = delayed(content, timeline, 20), delayed(content, timeline, 5), Seen()
    reader.watch(seen)
    clock.run(timeline, 5)
    assert seen.snapshots == 1
    outcome = writer.commit([], [Put("a", b"")])
    clock.run(timeline, 24)
    assert (content.get("a"), outcome.done, len(seen.batches)) == (None, False, 1)
    clock.run(timeline, 25)
    assert (content.get("a") is not None, outcome.done, len(seen.batches)) == (True, False, 1)
    clock.run(timeline, 30)
    assert (outcome.done, len(seen.batches)) == (False, 2)
    assert timeline.next_deadline_ms == 45
    clock.run(timeline, 45)
    assert outcome.value == {"a": 1}


def test_a_broken_connection_makes_the_outcome_of_sent_commits_unknown():
    clock = Clock()
    timeline, content = Timeline(clock), MemoryMetadata()
    store = delayed(content, timeline, 10)
    outcomes = [store.commit([], [Put(f"k{number}", b"")]) for number in range(2)]
    store.down = True
    assert [type(outcome.value) for outcome in outcomes] == [Unknown, Unknown]
    assert isinstance(store.wait(store.commit([], [Put("later", b"")])), Unavailable)
    clock.run(timeline, 100)
    assert [e.key for e in content.entries()] == ["k0", "k1"], "they were on the way"


def test_a_wait_for_a_snapshot_without_a_connection_ends_with_an_error():
    store, snapshot = SimulatedMetadataStore(), Deferred[MetadataBatch]()
    store.down = True
    store.watch(snapshot.resolve)
    with pytest.raises(Unavailable):
        store.wait(snapshot)
    store.down = False
    assert store.wait(snapshot).snapshot


def test_commits_of_a_session_arrive_in_the_order_in_which_they_were_sent():
    delays = iter([9, 0, 3, 1, 0, 8] + [0] * 99)
    store = SimulatedMetadataStore(delay_ms=lambda: next(delays))
    outcomes = [store.commit([], [Put("k", b"%d" % number)]) for number in range(6)]
    versions = [store.wait(outcome) for outcome in outcomes]
    assert versions == [{"k": number + 1} for number in range(6)]


def test_a_fast_commit_does_not_overtake_a_commit_that_is_due():
    clock, delays = Clock(), iter([5])
    store = SimulatedMetadataStore(timeline=Timeline(clock), delay_ms=lambda: next(delays, 0))
    first = store.commit([], [Put("k", b"1")])
    clock.now_ms = 5
    second = store.commit([], [Put("k", b"2")])
    assert (store.wait(second), store.wait(first)) == ({"k": 2}, {"k": 1})


def test_a_reader_continues_after_an_outage_where_it_was():
    content = MemoryMetadata(entries_limit=8)
    writer, reader, seen = MemoryMetadataStore(content), SimulatedMetadataStore(content), Seen()
    watch(reader, seen)
    commit(writer, [], [Put("a", b"0")])
    for commits, snapshots in ((5, 1), (9, 2)):
        reader.down = True
        before = len(seen.batches)
        for number in range(commits):
            commit(writer, [], [Put(f"k{number}", b""), Delete("a")])
        assert len(seen.batches) == before
        reader.down = False
        assert seen.snapshots == snapshots
        assert seen.known == {e.key: e for e in content.entries()}


def test_a_late_commit_of_an_ended_session_changes_nothing():
    store = SimulatedMetadataStore()
    store.faults = ["unknown and late"]
    store.commit([], [Put("a", b"")])
    store.lose_session()
    store.wait(store.renew())
    assert store.land() == 0
    assert stored(store).get("a") is None
