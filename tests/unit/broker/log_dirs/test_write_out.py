"""Durability `os`: a request that waits for a sync does not wait while much data is written out."""

from __future__ import annotations

import errno
import os

import pytest

from headrace.broker.log_dirs.background_sync import OS_INTERVAL_MS
from headrace.broker.log_dirs.write_out import WriteOut, WriteOuts
from headrace.errors import ErrorCode
from headrace.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from headrace.storage import os_files
from headrace.storage.os_files import OsFileSystem
from tests.fixtures.broker_harness import BrokerHarness, Pending, batch, produce_request
from tests.fixtures.crash_files import CrashFileSystem


def make(files=None) -> tuple[BrokerHarness, WriteOuts]:
    """A broker with a topic of durability `os` whose sync is due, and a topic with durability `fsync`."""
    harness = BrokerHarness(files=files or CrashFileSystem(), durability="os")
    write_outs = WriteOuts(harness.broker.services.log_store.dirs)
    harness.create_topic("much", partitions=2)
    harness.create_topic("safe", headrace_durability="fsync")
    harness.produce("much", b"a")
    harness.advance(OS_INTERVAL_MS)
    return harness, write_outs


def synced(harness: BrokerHarness) -> int:
    return harness.broker.services.partitions.require("much", 0).log.synced_offset


def waiting(harness: BrokerHarness) -> Pending:
    return harness.send(produce_request("safe", 0, batch(b"b")))


def write_out(write_outs: WriteOuts) -> WriteOut:
    due = write_outs.sync_due
    begun = write_outs.start_sync()
    assert begun is not None
    assert (due, write_outs.sync_due) == (True, False)
    assert write_outs.start_sync() is None
    return begun


def test_a_group_commit_does_not_wait_for_a_write_out() -> None:
    harness, write_outs = make()
    assert not harness.broker.sync_due, "what is due is written out first"
    slow = write_out(write_outs)
    acknowledged = waiting(harness)
    commit = harness.broker.start_sync()
    assert commit is not None
    assert len(commit.tasks) == 1
    commit.run()
    harness.broker.finish_sync(commit, None, harness.now_ms)
    assert acknowledged.done
    assert synced(harness) == 0
    slow.run()
    write_outs.finish_sync(slow, None, harness.now_ms)
    assert harness.sync(), "and only the group commit counts"
    assert synced(harness) == 1
    harness.advance(OS_INTERVAL_MS)
    assert not write_outs.sync_due, "nothing was written since"


def test_all_that_was_written_since_the_last_sync_is_written_out() -> None:
    files = CrashFileSystem()
    _, write_outs = make(files)
    written = files.open("much-0/00000000000000000000.log").inode
    assert written.stable < len(written.content)
    write_out(write_outs).run()
    assert written.stable == len(written.content)


def test_without_a_shell_that_writes_out_logs_are_synced_when_they_are_due() -> None:
    harness = BrokerHarness(files=CrashFileSystem(), durability="os")
    harness.create_topic("much", partitions=2)
    harness.produce("much", b"a")
    harness.advance(OS_INTERVAL_MS)
    assert harness.sync()
    assert synced(harness) == 1


def test_an_interval_that_was_promised_is_kept() -> None:
    harness = BrokerHarness(files=CrashFileSystem(), durability="interval:1000")
    write_outs = WriteOuts(harness.broker.services.log_store.dirs)
    harness.create_topic("much")
    harness.produce("much", b"a")
    harness.advance(1_000)
    assert not write_outs.sync_due
    assert harness.sync()


@pytest.mark.parametrize("begun", [False, True], ids=["before", "while it is written out"])
def test_a_topic_may_be_deleted(begun) -> None:
    harness, write_outs = make()
    slow = write_out(write_outs) if begun else None
    harness.call(DeleteTopicsRequest(topics=[DeleteTopicState(name="much")]))
    if slow is not None:
        slow.run()
        write_outs.finish_sync(slow, None, harness.now_ms)
    assert not write_outs.sync_due
    assert not harness.sync()


def test_the_group_commit_detects_a_disk_that_failed_during_the_write_out(
    tmp_path, monkeypatch
) -> None:
    """(1) The kernel reports a failed write once, (2) to the write-out, (3) and would report success to the next
    sync."""

    def fail(_: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    harness, write_outs = make(OsFileSystem(tmp_path))
    slow = write_out(write_outs)
    monkeypatch.setattr(os_files, "_sync_data", fail)
    slow.run()
    monkeypatch.undo()
    write_outs.finish_sync(slow, None, harness.now_ms)
    assert harness.sync()
    refused = waiting(harness).response.responses[0].partition_responses[0]
    assert refused.error_code == ErrorCode.KAFKA_STORAGE_ERROR
