"""A broker continues when the operating system refuses any file operation, or all file operations for a while.

`os.open` and `os.listdir` fail for lack of descriptors, memory or permissions, and writes fail for lack of space. The
script does everything that uses files. Each run refuses one operation, or all operations from one on until the next
step. The broker must not end. It must keep everything acknowledged, also after a kill, and must work again when files
can be opened again. HEADRACE_REFUSAL_STRIDE=1 refuses every operation in turn; by default the test takes one of 29.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from headrace.errors import ErrorCode, HeadraceError
from headrace.protocol.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from headrace.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from headrace.records.builder import BatchBuilder
from headrace.records.reader import read_records
from headrace.storage import os_files
from headrace.storage.os_files import OsFileSystem
from tests.fixtures.broker_harness import BrokerHarness, produce_request

pytestmark = pytest.mark.slow  # not in `make check`

STRIDE = int(os.environ.get("HEADRACE_REFUSAL_STRIDE", "29"))
"""The distance between two tested operations; the first one depends on the kind of error."""
OPENING = ("open", "listdir")
WRITING = ("open", "writev", "write", "replace")
KINDS = {
    "descriptors": (errno.EMFILE, OPENING),
    "memory": (errno.ENOMEM, OPENING),
    "permission": (errno.EACCES, OPENING),
    "space": (errno.ENOSPC, WRITING),
}
MINUTE_MS = 60_000


class RefusingSystem:
    """A replacement for `os` in which operations fail."""

    def __init__(self, code: int, names: tuple[str, ...]) -> None:
        self.code = code
        self.names = names
        self.count = 0
        self.refused = range(0)
        """The numbers of the operations that are refused."""
        self.namespace: Any = SimpleNamespace(**vars(os))
        for name in names:
            setattr(self.namespace, name, self._refusing(name))

    def _refusing(self, name: str) -> Any:
        function = getattr(os, name)

        def call(*args: Any, **options: Any) -> Any:
            # With ENOSPC an open fails only if it creates something.
            creates = name != "open" or bool(args[1] & os.O_CREAT)
            if self.code != errno.ENOSPC or creates:
                self.count += 1
                if self.count in self.refused:
                    raise OSError(self.code, os.strerror(self.code))
            return function(*args, **options)

        return call


class Harness:
    """A broker, the script that uses its files, and the acknowledged records."""

    def __init__(self, root: Path) -> None:
        self.harness = BrokerHarness(files=OsFileSystem(root), log_segment_bytes=1000)
        self.kept: dict[str, list[bytes]] = {}
        self.number = 0

    def create(self, name: str, **settings: Any) -> None:
        harness = self.harness
        if harness.broker.services.topics.get(name) is None:
            harness.create_topic(name, **settings)
            self.kept[name] = []

    def put(self, topic: str, count: int = 1, delay_ms: int | None = None) -> None:
        """Produce records, and retry after a pause as a client does."""
        for _ in range(count):
            self.number += 1
            value = b"%s %d %s" % (topic.encode(), self.number, b"." * 100)
            headers = () if delay_ms is None else (("headrace.delay-ms", b"%d" % delay_ms),)
            builder = BatchBuilder()
            assert builder.append(b"%d" % (self.number % 3), value, headers, self.harness.now_ms)
            pending = self.harness.send(produce_request(topic, 0, bytes(builder.build())))
            for _ in range(3):
                self.commit()
                if pending.done:
                    break
                self.harness.advance(300)
            if pending.done:
                part = pending.response.responses[0].partition_responses[0]
                if part.error_code == ErrorCode.NONE:
                    self.kept[topic].append(value)
                else:
                    assert part.error_code == ErrorCode.KAFKA_STORAGE_ERROR, part

    def commit(self) -> None:
        while self.harness.sync():
            assert not self.harness.broker.failed

    def compact(self) -> None:
        broker = self.harness.broker
        for _ in range(100):
            task = broker.start_compaction()
            if task is None:
                return
            error: Exception | None = None
            try:
                task.run()
            except (OSError, HeadraceError) as raised:
                error = raised
            broker.finish_compaction(task, error, self.harness.now_ms)

    def delete(self, name: str) -> None:
        """Delete a topic. After an error the next start finishes the deletion."""
        if self.harness.broker.services.topics.get(name) is not None:
            self.harness.call(DeleteTopicsRequest(topics=[DeleteTopicState(name=name)]))
        if self.harness.broker.services.topics.get(name) is None:
            self.kept[name] = []

    def delete_records(self, name: str) -> None:
        log = self.harness.broker.services.partitions.require(name, 0).log
        offset = log.high_watermark // 2
        rows = [DeleteRecordsPartition(partition_index=0, offset=offset)]
        topics = [DeleteRecordsTopic(name=name, partitions=rows)]
        self.harness.call(DeleteRecordsRequest(topics=topics, timeout_ms=1000))

    def script(self) -> Iterator[None]:
        """Use the files of the broker in every way, step by step."""
        harness = self.harness
        for again in range(2):
            self.create("plain")
            self.create("keys", cleanup_policy="compact", min_cleanable_dirty_ratio="0.01")
            self.create("later", headrace_delay_enable="true")
            self.create("weak", headrace_durability="os")
            yield
            self.put("plain", 4)
            self.put("keys", 20)
            yield
            self.put("later", 2, delay_ms=5_000)
            self.put("weak", 4)
            harness.advance(MINUTE_MS)
            self.commit()
            yield
            self.compact()
            harness.advance(MINUTE_MS)
            self.compact()
            yield
            harness.advance(6 * MINUTE_MS)
            self.delete_records("weak")
            yield
            self.delete("plain")
            self.create("plain")
            self.put("plain")
            yield
            if again:
                self.commit()
        harness.advance(MINUTE_MS)
        self.commit()

    def check(self) -> None:
        harness = self.harness
        assert not harness.broker.failed
        for topic in ("plain", "later"):
            values = self.values(topic)
            assert [value for value in self.kept[topic] if value not in values] == []
        newest = {value.split()[1]: value for value in self.values("keys")}
        if self.kept["keys"]:
            assert self.kept["keys"][-1].split()[1] in newest
        values = self.values("weak")
        assert self.kept["weak"][-1:] == [v for v in values if v == self.kept["weak"][-1]]

    def values(self, topic: str) -> list[bytes]:
        found: list[bytes] = []
        offset = self.harness.broker.services.partitions.require(topic, 0).log.log_start_offset
        while True:
            part = self.harness.fetch(topic, offset)
            assert part.error_code == 0, part.error_code
            data = bytes(part.records or b"")
            records = [record for record in read_records(data) if record.offset >= offset]
            if not records:
                partition = self.harness.broker.services.partitions.require(topic, 0)
                if offset >= partition.high_watermark or not data:
                    return found
                offset += 1
                continue
            found += [record.value or b"" for record in records]
            offset = records[-1].offset + 1


def run(root: Path, system: RefusingSystem, monkeypatch: pytest.MonkeyPatch) -> int:
    """Run the script with some operations refused, check the records, and return the number of operations."""
    world = Harness(root)
    steps = world.script()
    with monkeypatch.context() as patch:
        patch.setattr(os_files, "os", system.namespace)
        while True:
            try:
                next(steps)
            except StopIteration:
                break
            except AssertionError as error:
                raise AssertionError(f"{world.harness.journal.lines[-3:]}") from error
        count = system.count
    world.harness.advance(2 * MINUTE_MS)
    world.commit()
    world.compact()
    world.harness.advance(2 * MINUTE_MS)
    world.commit()
    world.check()
    world.create("new")
    for topic in ("plain", "keys", "later", "weak", "new"):
        before = len(world.kept[topic])
        world.put(topic)
        assert len(world.kept[topic]) == before + 1, topic
    world.harness.crash()
    world.check()
    assert not list(root.glob("*-delete"))
    return count


@pytest.mark.parametrize("kind", sorted(KINDS))
@pytest.mark.parametrize("length", [1, 40])
def test_an_operation_that_is_refused_ends_no_broker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, length: int
) -> None:
    code, names = KINDS[kind]
    count = run(tmp_path / "count", RefusingSystem(code, names), monkeypatch)
    assert count > 50
    for number in range(1 + (code + length) % STRIDE, count, STRIDE):
        system = RefusingSystem(code, names)
        system.refused = range(number, number + length)
        try:
            run(tmp_path / str(number), system, monkeypatch)
        except BaseException as error:
            error.add_note(f"{kind}: operations {number} to {number + length - 1} are refused")
            raise
