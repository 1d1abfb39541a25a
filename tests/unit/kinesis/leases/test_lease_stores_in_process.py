"""Leases in memory and in SQLite files, by the suite that also tests DynamoDB (tests/integration/kinesis)."""

from __future__ import annotations

import asyncio
import sqlite3
from pathlib import Path
from uuid import uuid4

import pytest

from headrace.errors import ConfigError, LeaseStoreError
from headrace.kinesis.leases.memory import MemoryLeaseStore
from headrace.kinesis.leases.sqlite import SqliteLeaseStore
from tests.integration.kinesis.lease_store_conformance import (
    CHECKS,
    Check,
    a_closed_store_says_so,
    created,
    opened,
    read,
)

# A store in memory works before `open` and after `close`.
OF_MEMORY = [check for check in CHECKS if check is not a_closed_store_says_so]


@pytest.mark.parametrize("check", OF_MEMORY, ids=lambda check: check.__name__)
def test_memory_passes_every_check(check: Check) -> None:
    name = str(uuid4())
    asyncio.run(check(lambda: MemoryLeaseStore(name)))


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return one file for all checks: each check has its own group, and creating a file takes long."""
    return tmp_path_factory.mktemp("leases") / "some" / "where" / "leases.db"


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_sqlite_passes_every_check(check: Check, path: Path) -> None:
    asyncio.run(check(lambda: SqliteLeaseStore(path)))


def test_a_memory_store_without_a_name_shares_no_rows() -> None:
    async def scenario() -> None:
        async with opened(MemoryLeaseStore) as one, opened(MemoryLeaseStore) as other:
            await created(one)
            assert await other.streams() == []

    asyncio.run(scenario())


def test_another_programs_database_is_not_changed(tmp_path: Path) -> None:
    path = tmp_path / "theirs.db"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE customers (name TEXT)")
    connection.close()
    before = path.read_bytes()
    with pytest.raises(ConfigError, match=r"theirs.db is another program's database"):
        asyncio.run(SqliteLeaseStore(path).open())
    assert path.read_bytes() == before
    assert [each.name for each in tmp_path.iterdir()] == ["theirs.db"]


def test_a_file_that_is_no_database_is_not_changed(tmp_path: Path) -> None:
    path = tmp_path / "letter.txt"
    path.write_text("Dear Sir or Madam, " * 100)
    with pytest.raises(ConfigError, match="is no lease store: file is not a database"):
        asyncio.run(SqliteLeaseStore(path).open())
    assert path.read_text().startswith("Dear Sir")


def test_a_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be opened as a lease store"):
        asyncio.run(SqliteLeaseStore(tmp_path).open())


def test_a_database_with_a_later_schema_is_not_changed(tmp_path: Path) -> None:
    path = tmp_path / "leases.db"

    async def write() -> None:
        async with opened(lambda: SqliteLeaseStore(path)):
            pass

    asyncio.run(write())
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA user_version = 2")
    connection.close()
    with pytest.raises(ConfigError, match="written in format 2, this version knows up to 1"):
        asyncio.run(SqliteLeaseStore(path).open())


def test_a_locked_file_is_an_unknown_outcome(tmp_path: Path) -> None:
    path = tmp_path / "leases.db"

    async def scenario() -> None:
        async with opened(lambda: SqliteLeaseStore(path, busy_timeout_ms=10)) as store:
            lease = await created(store)
            other = sqlite3.connect(path, isolation_level=None)
            other.execute("BEGIN IMMEDIATE")
            with pytest.raises(
                LeaseStoreError,
                match=r"leases.db: database is locked for more than 0.01 s: see which",
            ):
                await store.take(lease, "a")
            assert await read(store, lease) == lease  # readers do not wait for a writer
            other.execute("ROLLBACK")
            other.close()
            assert await store.take(lease, "a")

    asyncio.run(scenario())
