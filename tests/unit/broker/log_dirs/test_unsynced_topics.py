"""The file `unsynced_topics`: which topics may have lost records when a broker of a cluster starts."""

from __future__ import annotations

import errno

import pytest

from headrace.broker.log_dirs.unsynced_topics import UNSYNCED_FILE, UnsyncedTopics
from headrace.core.log import CLEAN_FILE, encode_checkpoint
from headrace.storage.memory_files import MemoryFileSystem
from tests.fixtures.crash_files import CrashFileSystem

ONE, TWO = bytes(15) + b"1", bytes(15) + b"2"


def used(files: MemoryFileSystem | CrashFileSystem, *topics: bytes, boot: str | None = "A") -> None:
    """Let a process of the first start of the machine note topics."""
    process = UnsyncedTopics(files, boot)
    process.opened()
    for topic in topics:
        process.add(topic)
    process.begin()


def lost(files: MemoryFileSystem | CrashFileSystem, boot: str | None = "B") -> list[bytes]:
    process = UnsyncedTopics(files, boot)
    process.opened()
    return [topic for topic in (ONE, TWO) if process.may_have_lost(topic)]


def mark_clean(files: MemoryFileSystem) -> None:
    files.write_file(CLEAN_FILE, encode_checkpoint(CLEAN_FILE, ()))


def test_a_topic_may_have_lost_records_after_a_power_cut() -> None:
    files = MemoryFileSystem()
    used(files, ONE)
    assert lost(files) == [ONE]


def test_a_topic_has_lost_nothing_in_the_same_start_of_the_machine() -> None:
    files = MemoryFileSystem()
    used(files, ONE)
    assert lost(files, boot="A") == []


def test_a_topic_has_lost_nothing_after_a_clean_shutdown() -> None:
    files = MemoryFileSystem()
    used(files, ONE)
    mark_clean(files)
    assert lost(files) == []


@pytest.mark.parametrize(("before", "after"), [(None, None), (None, "A"), ("A", None)])
def test_an_unknown_boot_id_is_another_one(before: str | None, after: str | None) -> None:
    files = MemoryFileSystem()
    used(files, ONE, boot=before)
    assert lost(files, boot=after) == [ONE]


def test_a_clean_shutdown_does_not_excuse_an_earlier_power_cut() -> None:
    files = MemoryFileSystem()
    used(files, ONE)
    assert lost(files) == [ONE]
    mark_clean(files)  # the process ends before its replicas have left
    assert lost(files) == [ONE]
    assert lost(files, boot="A") == [ONE]


def test_nothing_is_lost_when_the_replicas_have_left() -> None:
    files = MemoryFileSystem()
    used(files, ONE)
    assert lost(files) == [ONE]
    used(files, boot="B")
    assert lost(files, boot="C") == []


def test_a_topic_is_noted_durably_before_it_is_used() -> None:
    files = CrashFileSystem()
    process = UnsyncedTopics(files, "A")
    process.begin()
    process.add(ONE)
    process.add(TWO)
    assert lost(files.after_power_cut(0)) == [ONE, TWO]


def test_a_topic_that_could_not_be_noted_is_noted_again() -> None:
    files = CrashFileSystem()
    process = UnsyncedTopics(files, "A")
    process.begin()
    files.fault = lambda _kind, _path: errno.ENOSPC
    with pytest.raises(OSError, match="ENOSPC"):
        process.add(ONE)
    files.fault = None
    process.add(ONE)
    assert lost(files) == [ONE]


def test_a_damaged_file_means_that_any_topic_may_have_lost_records() -> None:
    files = MemoryFileSystem()
    used(files, ONE)
    files.write_file(UNSYNCED_FILE, b"damaged")
    assert lost(files, boot="A") == [ONE, TWO]


def test_a_directory_without_such_topics_has_no_file() -> None:
    files = MemoryFileSystem()
    used(files)
    assert files.read_file(UNSYNCED_FILE) is None


def test_a_new_directory_has_lost_everything_until_the_replicas_have_left() -> None:
    files = MemoryFileSystem()
    UnsyncedTopics(files, "A").begin_new()
    mark_clean(files)
    assert lost(files, boot="A") == [ONE, TWO]
    assert lost(files, boot="A") == [ONE, TWO]
    process = UnsyncedTopics(files, "A")
    process.begin()
    assert lost(files, boot="A") == []
