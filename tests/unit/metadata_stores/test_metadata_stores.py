"""One suite for all metadata stores, and the durability of the store on disk."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from headrace.errors import StorageError
from headrace.metadata_stores.memory import MemoryMetadataStore
from headrace.metadata_stores.sqlite import SqliteMetadataStore
from headrace.ports import (
    Check,
    Conflict,
    Delete,
    MetadataBatch,
    MetadataEntry,
    MetadataStore,
    Put,
    SessionLost,
    Unavailable,
    Unknown,
)
from tests.fixtures.faulty_metadata import FaultyMetadataStore


@pytest.fixture(params=["memory", "sqlite", "faulty"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[MetadataStore]:
    makers: dict[str, Callable[[], MetadataStore]] = {
        "memory": MemoryMetadataStore,
        "sqlite": lambda: SqliteMetadataStore(tmp_path / "metadata.db"),
        "faulty": FaultyMetadataStore,
    }
    made = makers[request.param]()
    yield made
    made.close()


def test_an_absent_key_is_none(store: MetadataStore):
    assert store.get("topics/flights") is None
    assert list(store.list("topics/")) == []


def test_a_put_is_read_back_with_its_version(store: MetadataStore):
    versions = store.commit([], [Put("a", b"1")])
    assert store.get("a") == MetadataEntry("a", b"1", versions["a"])


def test_list_is_sorted_and_stops_at_the_prefix(store: MetadataStore):
    store.commit([], [Put(key, b"") for key in ("topics/b", "topics", "topics/a", "topicsz", "u")])
    assert [e.key for e in store.list("topics/")] == ["topics/a", "topics/b"]
    assert [e.key for e in store.list("topics")] == ["topics", "topics/a", "topics/b", "topicsz"]
    assert len(store.list("")) == 5


def test_list_treats_wildcards_as_literal_characters(store: MetadataStore):
    store.commit([], [Put("a_b", b""), Put("axb", b""), Put("a%b", b"")])
    assert [e.key for e in store.list("a_")] == ["a_b"]
    assert [e.key for e in store.list("a%")] == ["a%b"]


def test_a_failing_check_names_its_index_and_changes_nothing(store: MetadataStore):
    version = store.commit([], [Put("a", b"1")])["a"]
    with pytest.raises(Conflict) as conflict:
        store.commit(
            [Check("a", version), Check("b", "exists"), Check("a", "absent")],
            [Put("a", b"2"), Put("c", b"3")],
        )
    assert conflict.value.index == 1
    assert store.get("a") == MetadataEntry("a", b"1", version)
    assert store.get("c") is None


@pytest.mark.parametrize(
    ("present", "wanted", "holds"),
    [
        (True, "exists", True),
        (True, "absent", False),
        (False, "exists", False),
        (False, "absent", True),
        (False, 1, False),
    ],
)
def test_a_check_compares_the_existence_of_a_key(store: MetadataStore, present, wanted, holds):
    if present:
        store.commit([], [Put("a", b"")])
    check = Check("a", wanted)
    if holds:
        store.commit([check], [Put("b", b"")])
        assert store.get("b") is not None
    else:
        with pytest.raises(Conflict):
            store.commit([check], [Put("b", b"")])
        assert store.get("b") is None


def test_every_write_changes_the_version(store: MetadataStore):
    first = store.commit([], [Put("a", b"same")])["a"]
    second = store.commit([Check("a", first)], [Put("a", b"same")])["a"]
    assert first != second
    with pytest.raises(Conflict):
        store.commit([Check("a", first)], [Put("a", b"late")])


def test_a_version_never_recurs_after_deletion(store: MetadataStore):
    seen = set()
    for _ in range(5):
        seen.add(store.commit([Check("a", "absent")], [Put("a", b"")])["a"])
        store.commit([], [Delete("a")])
    assert len(seen) == 5


def test_deleting_an_absent_key_is_no_error(store: MetadataStore):
    assert store.commit([], [Delete("a")]) == {}


def test_operations_apply_in_order(store: MetadataStore):
    versions = store.commit([], [Put("a", b"1"), Delete("a"), Put("b", b"1"), Put("b", b"2")])
    assert store.get("a") is None
    assert list(versions) == ["b"]
    assert store.get("b") == MetadataEntry("b", b"2", versions["b"])


def test_a_value_is_copied(store: MetadataStore):
    value = bytearray(b"1")
    store.commit([], [Put("a", memoryview(value))])  # type: ignore[arg-type]  # callers may hold any buffer
    value[0] = 0
    entry = store.get("a")
    assert entry is not None
    assert entry.value == b"1"


@pytest.mark.parametrize(
    "operations",
    [
        [Put("", b"")],
        [Put("a\x00b", b"")],
        [Put("k" * 1025, b"")],
        [Delete(str(i)) for i in range(101)],
        [Put("a", bytes(300_000)), Put("b", bytes(300_000))],
    ],
)
def test_a_commit_beyond_the_limits_is_refused(
    store: MetadataStore, operations: list[Put | Delete]
):
    with pytest.raises(ValueError, match=r"key|commit"):
        store.commit([], operations)
    assert list(store.list("")) == []


# Watches and sessions


class Seen:
    """A callback that keeps its arguments."""

    def __init__(self) -> None:
        self.batches: list[MetadataBatch] = []
        self.known: dict[str, MetadataEntry] = {}

    def __call__(self, batch: MetadataBatch) -> None:
        self.batches.append(batch)
        if batch.snapshot:
            self.known.clear()
        for entry in batch.puts:
            assert entry.key not in self.known or entry.version > self.known[entry.key].version
            self.known[entry.key] = entry
        for key in batch.deletes:
            del self.known[key]


def test_a_watch_begins_with_a_snapshot_of_the_entries(store: MetadataStore):
    store.commit([], [Put("t/b", b"2"), Put("t/a", b"1"), Put("u", b"3")])
    seen = Seen()
    store.watch("t/", seen)
    (batch,) = seen.batches
    assert batch.snapshot
    assert list(batch.puts) == list(store.list("t/"))
    assert list(batch.deletes) == []


def test_a_watch_without_entries_begins_with_an_empty_snapshot(store: MetadataStore):
    seen = Seen()
    store.watch("t/", seen)
    assert [(b.snapshot, list(b.puts)) for b in seen.batches] == [(True, [])]


def test_a_watch_gets_each_commit_under_its_prefix(store: MetadataStore):
    seen = Seen()
    store.watch("t/", seen)
    store.commit([], [Put("t/b", b"1"), Put("u", b"1"), Put("t/a", b"1")])
    store.commit([], [Put("u", b"2")])
    store.commit([], [Delete("t/b"), Delete("t/never"), Put("t/a", b"2")])
    told = [([e.key for e in b.puts], list(b.deletes)) for b in seen.batches[1:]]
    assert told == [(["t/a", "t/b"], []), (["t/a"], ["t/b"])]
    assert list(seen.known.values()) == list(store.list("t/"))


def test_a_watch_gets_no_commit_that_was_not_applied(store: MetadataStore):
    seen = Seen()
    store.watch("", seen)
    with pytest.raises(Conflict):
        store.commit([Check("a", "exists")], [Put("b", b"")])
    with pytest.raises(ValueError, match="key"):
        store.commit([], [Put("", b"")])
    store.commit([], [Put("a", b""), Delete("a")])
    assert len(seen.batches) == 1


def test_an_ended_watch_receives_no_commit(store: MetadataStore):
    seen, other = Seen(), Seen()
    end = store.watch("", seen)
    store.watch("", other)
    end()
    end()
    store.commit([], [Put("a", b"")])
    assert (len(seen.batches), len(other.batches)) == (1, 2)


def test_a_callback_sees_the_commit_and_may_commit_itself(store: MetadataStore):
    seen = Seen()
    running: list[str] = []

    def follow(batch: MetadataBatch) -> None:
        assert not running, "one callback at a time"
        running.append("follow")
        for entry in batch.puts:
            assert store.get(entry.key) == entry
            if len(entry.value) < 5:
                store.commit([Check(entry.key, entry.version)], [Put("k", entry.value + b"x")])
        running.clear()

    store.watch("k", follow)
    store.watch("k", seen)
    store.commit([], [Put("k", b"")])
    assert seen.known["k"].value == b"xxxxx"
    assert store.get("k") == seen.known["k"]


def test_a_callback_may_watch_and_end_watches(store: MetadataStore):
    inner, outer = Seen(), Seen()
    ends: list[Callable[[], object]] = []

    def once(batch: MetadataBatch) -> None:
        outer(batch)
        if not batch.snapshot:
            store.watch("", inner)
            ends[0]()

    ends.append(store.watch("", once))
    store.commit([], [Put("a", b"1")])
    store.commit([], [Put("a", b"2")])
    assert [b.snapshot for b in outer.batches] == [True, False]
    assert [b.snapshot for b in inner.batches] == [True, False]
    assert inner.known["a"].value == b"2"


def test_a_single_process_passes_a_barrier(store: MetadataStore):
    version = store.commit([], [Put("a", b"")])["a"]
    store.barrier()
    entry = store.get("a")
    assert entry is not None
    assert entry.version == version


def test_an_ephemeral_entry_is_an_entry(store: MetadataStore):
    versions = store.commit([], [Put("live/1", b"a", ephemeral=True), Put("live/2", b"b")])
    assert store.get("live/1") == MetadataEntry("live/1", b"a", versions["live/1"])
    assert [e.key for e in store.list("live/")] == ["live/1", "live/2"]
    with pytest.raises(Conflict):
        store.commit([Check("live/1", "absent")], [Put("live/1", b"b", ephemeral=True)])
    again = store.commit(
        [Check("live/1", versions["live/1"]), Check("live/2", "exists")],
        [Put("live/1", b"c", ephemeral=True)],
    )
    assert again["live/1"] > versions["live/1"]
    assert len(store.list("live/")) == 2
    store.commit([], [Delete("live/1")])
    assert store.get("live/1") is None


def test_a_conflict_undoes_ephemeral_entries_too(store: MetadataStore):
    with pytest.raises(Conflict):
        store.commit([Check("no", "exists")], [Put("live", b"", ephemeral=True)])
    assert store.get("live") is None


def test_renewing_a_live_session_does_nothing(store: MetadataStore):
    seen, session = Seen(), store.session
    store.commit([], [Put("live", b"", ephemeral=True)])
    store.watch("", seen)
    store.renew()
    assert store.session == session
    assert len(seen.batches) == 1
    assert store.get("live") is not None


# Commits without a response


def breaking(store: MetadataStore, monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    """Let the next commit meet a fault."""
    if isinstance(store, FaultyMetadataStore):
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


@pytest.mark.parametrize("store", ["sqlite", "faulty"], indirect=True)
def test_an_unavailable_commit_is_not_applied_and_may_be_repeated(store, monkeypatch):
    seen = Seen()
    store.watch("", seen)
    breaking(store, monkeypatch, "unavailable")
    with pytest.raises(Unavailable):
        store.commit([], [Put("a", b"1")])
    assert store.get("a") is None
    assert len(seen.batches) == 1
    store.commit([Check("a", "absent")], [Put("a", b"1")])
    assert [entry.key for entry in store.list("")] == ["a"]


@pytest.mark.parametrize("store", ["sqlite", "faulty"], indirect=True)
@pytest.mark.parametrize(
    ("fault", "applied"), [("unknown and void", False), ("unknown and applied", True)]
)
def test_the_outcome_of_an_unknown_commit_can_be_determined(store, monkeypatch, fault, applied):
    before = store.commit([], [Put("fence", b"0")])["fence"]
    breaking(store, monkeypatch, fault)
    with pytest.raises(Unknown):
        store.commit([Check("fence", before)], [Put("fence", b"1"), Put("a", b"")])
    store.barrier()
    entry = store.get("fence")
    assert (entry.version != before, entry.value) == (applied, b"1" if applied else b"0")
    assert (store.get("a") is not None) == applied


def test_an_unknown_commit_is_void_when_its_check_has_become_false():
    store = FaultyMetadataStore()
    before = store.commit([], [Put("fence", b"0")])["fence"]
    store.faults = ["unknown and late"]
    with pytest.raises(Unknown):
        store.commit([Check("fence", before)], [Put("fence", b"1"), Put("a", b"")])
    store.commit([Check("fence", before)], [Put("fence", b"0")])
    assert store.land() == 0
    assert store.get("a") is None


def test_a_lost_session_deletes_only_ephemeral_entries():
    store, seen = FaultyMetadataStore(), Seen()
    store.commit([], [Put("live", b"", ephemeral=True), Put("stays", b"")])
    store.watch("", seen)
    store.lose_session()
    calls: list[Callable[[], object]] = [
        lambda: store.get("stays"),
        lambda: store.list(""),
        lambda: store.commit([], [Put("stays", b"2")]),
        store.barrier,
    ]
    for call in calls:
        with pytest.raises(SessionLost):
            call()
    store.down = True
    with pytest.raises(Unavailable):
        store.renew()
    store.down = False
    store.renew()
    assert store.session == 2
    assert [(entry.key, entry.value) for entry in store.list("")] == [("stays", b"")]
    assert seen.batches[-1].snapshot
    assert set(seen.known) == {"stays"}
    store.commit([Check("live", "absent")], [Put("live", b"", ephemeral=True)])
    assert set(seen.known) == {"live", "stays"}


@pytest.fixture(params=["memory", "sqlite"])
def sessions(
    request: pytest.FixtureRequest, tmp_path: Path
) -> Iterator[Callable[[], MetadataStore]]:
    """Close the session there is, and return the next one over the same content."""
    made: list[MetadataStore] = []

    def following() -> MetadataStore:
        if made:
            made[-1].close()
        if request.param == "sqlite" or not made:
            store = MemoryMetadataStore if request.param == "memory" else SqliteMetadataStore
            made.append(store(*[tmp_path / "metadata.db"] * (request.param == "sqlite")))
        return made[-1]

    yield following
    made[-1].close()


def test_ephemeral_entries_and_watches_end_with_the_session(sessions):
    store = sessions()
    seen = Seen()
    store.watch("", seen)
    old = store.commit([], [Put("live", b"1", ephemeral=True), Put("stays", b"")])
    store = sessions()
    assert [e.key for e in store.list("")] == ["stays"]
    new = store.commit([Check("live", "absent")], [Put("live", b"2", ephemeral=True)])
    assert new["live"] > old["live"], "a version never recurs"
    assert len(seen.batches) == 2


@pytest.mark.parametrize(("first", "second"), [(True, False), (False, True)])
def test_the_last_put_determines_whether_an_entry_is_ephemeral(sessions, first, second):
    store = sessions()
    store.commit([], [Put("a", b"1", ephemeral=first)])
    store.commit([], [Put("a", b"2", ephemeral=second)])
    entry = store.get("a")
    assert entry is not None
    assert [e.value for e in store.list("")] == [b"2"]
    store = sessions()
    assert store.get("a") == (None if second else entry)


def test_a_deleted_ephemeral_entry_can_become_durable(sessions):
    store = sessions()
    store.commit([], [Put("a", b"1", ephemeral=True), Delete("a"), Put("a", b"2")])
    store = sessions()
    entry = store.get("a")
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
    assert [e.key for e in store.list("")] == ["stays"]
    store.close()


@pytest.fixture
def reopened(tmp_path: Path) -> Callable[[], SqliteMetadataStore]:
    return lambda: SqliteMetadataStore(tmp_path / "metadata.db")


def test_content_and_versions_survive_a_reopening(reopened: Callable[[], SqliteMetadataStore]):
    store = reopened()
    first = store.commit([], [Put("a", b"1"), Put("gone", b"")])["a"]
    store.commit([], [Delete("gone")])
    store.close()
    store = reopened()
    assert store.get("a") == MetadataEntry("a", b"1", first)
    assert store.commit([], [Put("gone", b"")])["gone"] > first + 1
    store.close()


def test_a_commit_that_returned_is_synced_before_anything_else(
    reopened: Callable[[], SqliteMetadataStore],
):
    store = reopened()
    assert store._connection.execute("PRAGMA synchronous").fetchone() == (2,)
    assert store._connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    store.close()


def test_a_second_owner_is_refused_in_this_process_and_in_another(tmp_path: Path):
    path = tmp_path / "metadata.db"
    store = SqliteMetadataStore(path)
    with pytest.raises(StorageError, match="another broker"):
        SqliteMetadataStore(path)
    script = (
        "import sys\nfrom headrace.metadata_stores.sqlite import SqliteMetadataStore\n"
        "from headrace.errors import StorageError\n"
        "try:\n    SqliteMetadataStore(sys.argv[1])\nexcept StorageError:\n    sys.exit(7)\n"
    )
    assert subprocess.run([sys.executable, "-c", script, str(path)], check=False).returncode == 7
    store.close()
    assert subprocess.run([sys.executable, "-c", script, str(path)], check=False).returncode == 0


def test_a_killed_owner_leaves_its_commits_and_no_lock(tmp_path: Path):
    path = tmp_path / "metadata.db"
    script = (
        "import os, signal, sys\nfrom headrace.metadata_stores.sqlite import SqliteMetadataStore\n"
        "from headrace.ports import Put\n"
        "SqliteMetadataStore(sys.argv[1]).commit([], [Put('a', b'1')])\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    subprocess.run([sys.executable, "-c", script, str(path)], check=False)
    store = SqliteMetadataStore(path)
    entry = store.get("a")
    assert entry is not None
    assert entry.value == b"1"
    store.close()


def test_a_foreign_database_and_a_newer_format_are_refused(tmp_path: Path):
    path = tmp_path / "other.db"
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE notes (text)")
    connection.close()
    with pytest.raises(StorageError, match="not a metadata store"):
        SqliteMetadataStore(path)

    newer = tmp_path / "newer.db"
    SqliteMetadataStore(newer).close()
    connection = sqlite3.connect(newer)
    connection.execute("PRAGMA user_version = 99")
    connection.close()
    with pytest.raises(StorageError, match="format 99"):
        SqliteMetadataStore(newer)


def test_a_file_that_is_no_database_is_refused(tmp_path: Path):
    path = tmp_path / "metadata.db"
    path.write_bytes(b"not a database, and long enough to have a header " * 40)
    with pytest.raises(StorageError):
        SqliteMetadataStore(path)


def test_a_directory_that_does_not_exist_is_refused(tmp_path: Path):
    with pytest.raises(StorageError):
        SqliteMetadataStore(tmp_path / "missing" / "metadata.db")


def test_the_metadata_file_is_private_to_its_owner(tmp_path: Path):
    path = tmp_path / "metadata.db"
    store = SqliteMetadataStore(path)
    try:
        store.commit([], [Put("scram/SCRAM-SHA-256/alice", b"{}")])
        modes = {each.name: each.stat().st_mode & 0o777 for each in tmp_path.iterdir()}
    finally:
        store.close()
    assert modes == dict.fromkeys(modes, 0o600)
    assert set(modes) >= {"metadata.db", "metadata.db-wal"}


def test_a_missing_directory_is_reported(tmp_path: Path):
    with pytest.raises(StorageError, match="No such file"):
        SqliteMetadataStore(tmp_path / "missing" / "metadata.db")
