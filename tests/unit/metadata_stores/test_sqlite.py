"""The metadata store in SQLite: durability, its lock, its format and upgrades from earlier formats."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headrace.errors import StorageError
from headrace.metadata_stores import change_log
from headrace.metadata_stores import sqlite as sqlite_store
from headrace.metadata_stores.sqlite import SqliteMetadataStore
from headrace.ports import Check, Delete, MetadataEntry, Put, Unavailable
from tests.fixtures.metadata_stores import Seen, commit, stored


@pytest.fixture
def reopened(tmp_path: Path) -> Callable[[], SqliteMetadataStore]:
    return lambda: SqliteMetadataStore(tmp_path / "metadata.db")


def test_content_and_versions_survive_a_reopening(reopened: Callable[[], SqliteMetadataStore]):
    store = reopened()
    first = commit(store, [], [Put("a", b"1"), Put("gone", b"")])["a"]
    commit(store, [], [Delete("gone")])
    store.close()
    store = reopened()
    assert stored(store).get("a") == MetadataEntry("a", b"1", first)
    assert commit(store, [], [Put("gone", b"")])["gone"] > first + 1
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
    entry = stored(store).get("a")
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
        commit(store, [], [Put("scram/SCRAM-SHA-256/alice", b"{}")])
        modes = {each.name: each.stat().st_mode & 0o777 for each in tmp_path.iterdir()}
    finally:
        store.close()
    assert modes == dict.fromkeys(modes, 0o600)
    assert set(modes) >= {"metadata.db", "metadata.db-wal"}


def test_a_missing_directory_is_reported(tmp_path: Path):
    with pytest.raises(StorageError, match="No such file"):
        SqliteMetadataStore(tmp_path / "missing" / "metadata.db")


# The format


def tables(path: Path) -> dict[str, list[Any]]:
    """Return the rows of every table, and the format, of a file that no broker uses."""
    connection = sqlite3.connect(path)
    names = [name for (name,) in connection.execute("SELECT name FROM sqlite_master ORDER BY name")]
    found = {name: connection.execute(f"SELECT * FROM {name}").fetchall() for name in names}
    found["format"] = list(connection.execute("PRAGMA user_version"))
    connection.close()
    return found


def version_1(path: Path) -> None:
    """Write a file as version 1 of the format has it."""
    connection = sqlite3.connect(path)
    connection.executescript(
        "CREATE TABLE entries (key TEXT PRIMARY KEY, value BLOB NOT NULL, version INTEGER NOT NULL) WITHOUT ROWID;"
        "CREATE TABLE counter (version INTEGER NOT NULL);"
        "INSERT INTO counter VALUES (7);"
        "INSERT INTO entries VALUES ('a', X'31', 5), ('b', X'', 7);"
        f"PRAGMA application_id = {sqlite_store.APPLICATION_ID};"
        "PRAGMA user_version = 1;"
    )
    connection.close()


def test_a_file_of_version_1_is_upgraded_with_its_content_and_versions(tmp_path: Path):
    path, seen = tmp_path / "metadata.sqlite", Seen()
    version_1(path)
    store = SqliteMetadataStore(path)
    store.watch(seen)
    assert store.entries() == [MetadataEntry("a", b"1", 5), MetadataEntry("b", b"", 7)]
    assert commit(store, [Check("b", 7)], [Put("b", b"2"), Delete("a")]) == {"b": 8}
    assert set(seen.known) == {"b"}
    store.close()
    found = tables(path)
    assert found["format"] == [(2,)]
    assert found["changes"] == [(8, "a", None), (8, "b", b"2")]


def test_an_interrupted_upgrade_leaves_a_file_of_version_1(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    path = tmp_path / "metadata.sqlite"
    version_1(path)
    before = tables(path)
    upgrade = sqlite_store._UPGRADES[1]
    statements = [statement for statement in upgrade.split(";") if statement.strip()]
    for done in range(len(statements) + 1):
        broken = ";".join([*statements[:done], "broken"])
        monkeypatch.setattr(sqlite_store, "_UPGRADES", ("", broken))
        with pytest.raises(StorageError, match="broken"):
            SqliteMetadataStore(path)
        assert tables(path) == before
    monkeypatch.setattr(sqlite_store, "_UPGRADES", ("", upgrade))
    SqliteMetadataStore(path).close()
    assert tables(path)["entries"] == [("a", b"1", 5, 0), ("b", b"", 7, 0)]


def test_the_change_log_survives_a_reopening_and_stays_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(change_log.KeptChanges.__init__, "__defaults__", (8,))
    path = tmp_path / "metadata.sqlite"
    for number in range(0, 30, 5):
        store = SqliteMetadataStore(path)
        for following in range(number, number + 5):
            commit(store, [], [Put("k", b"%d" % following)])
        store.close()
    found = [(version, value) for version, _, value in tables(path)["changes"]]
    assert len(found) <= 8
    assert found == [(number + 1, b"%d" % number) for number in range(30 - len(found), 30)]


def test_a_commit_and_its_entry_of_the_change_log_are_one_step(tmp_path: Path):
    path = tmp_path / "metadata.sqlite"
    store = SqliteMetadataStore(path)
    store._connection.execute(
        "CREATE TEMP TRIGGER full BEFORE INSERT ON changes WHEN NEW.key = 'b' BEGIN SELECT RAISE(ABORT, 'full'); END"
    )
    outcome = store.wait(store.commit([], [Put("a", b""), Put("b", b"")]))
    assert isinstance(outcome, Unavailable)
    assert stored(store) == {}
    assert commit(store, [], [Put("a", b"")]) == {"a": 1}
    store.close()
    assert tables(path)["changes"] == [(1, "a", b"")]


def test_the_change_log_has_the_end_of_ephemeral_entries(tmp_path: Path):
    path = tmp_path / "metadata.sqlite"
    store = SqliteMetadataStore(path)
    commit(store, [], [Put("live", b"1", ephemeral=True), Put("stays", b"2")])
    store.close()
    SqliteMetadataStore(path).close()
    found = tables(path)
    assert found["entries"] == [("stays", b"2", 1, 0)]
    assert found["changes"] == [(1, "live", b"1"), (1, "stays", b"2"), (2, "live", None)]
