"""One suite for every metadata store, and what only the one on disk promises."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from headrace.coordination.memory import MemoryMetadataStore
from headrace.coordination.sqlite import SqliteMetadataStore
from headrace.errors import StorageError
from headrace.ports import Check, Conflict, Delete, Entry, MetadataStore, Put


@pytest.fixture(params=["memory", "sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[MetadataStore]:
    made: MetadataStore = (
        MemoryMetadataStore()
        if request.param == "memory"
        else SqliteMetadataStore(tmp_path / "metadata.db")
    )
    yield made
    made.close()


def test_an_absent_key_is_none(store: MetadataStore):
    assert store.get("topics/flights") is None
    assert list(store.list("topics/")) == []


def test_a_put_is_read_back_with_its_version(store: MetadataStore):
    versions = store.commit([], [Put("a", b"1")])
    assert store.get("a") == Entry("a", b"1", versions["a"])


def test_list_is_sorted_and_stops_at_the_prefix(store: MetadataStore):
    store.commit([], [Put(key, b"") for key in ("topics/b", "topics", "topics/a", "topicsz", "u")])
    assert [e.key for e in store.list("topics/")] == ["topics/a", "topics/b"]
    assert [e.key for e in store.list("topics")] == ["topics", "topics/a", "topics/b", "topicsz"]
    assert len(store.list("")) == 5


def test_list_takes_wildcards_literally(store: MetadataStore):
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
    assert store.get("a") == Entry("a", b"1", version)
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
def test_existence_checks(store: MetadataStore, present, wanted, holds):
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
    assert store.get("b") == Entry("b", b"2", versions["b"])


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
def test_what_no_store_could_carry_is_refused(store: MetadataStore, operations: list[Put | Delete]):
    with pytest.raises(ValueError, match=r"key|commit"):
        store.commit([], operations)
    assert list(store.list("")) == []


@pytest.fixture
def reopened(tmp_path: Path) -> Callable[[], SqliteMetadataStore]:
    return lambda: SqliteMetadataStore(tmp_path / "metadata.db")


def test_content_and_versions_survive_a_reopening(reopened: Callable[[], SqliteMetadataStore]):
    store = reopened()
    first = store.commit([], [Put("a", b"1"), Put("gone", b"")])["a"]
    store.commit([], [Delete("gone")])
    store.close()
    store = reopened()
    assert store.get("a") == Entry("a", b"1", first)
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
        "import sys\nfrom headrace.coordination.sqlite import SqliteMetadataStore\n"
        "from headrace.errors import StorageError\n"
        "try:\n    SqliteMetadataStore(sys.argv[1])\nexcept StorageError:\n    sys.exit(7)\n"
    )
    assert subprocess.run([sys.executable, "-c", script, str(path)], check=False).returncode == 7
    store.close()
    assert subprocess.run([sys.executable, "-c", script, str(path)], check=False).returncode == 0


def test_a_killed_owner_leaves_its_commits_and_no_lock(tmp_path: Path):
    path = tmp_path / "metadata.db"
    script = (
        "import os, signal, sys\nfrom headrace.coordination.sqlite import SqliteMetadataStore\n"
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


def test_somebody_elses_database_and_a_newer_format_are_refused(tmp_path: Path):
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
