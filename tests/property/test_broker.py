"""A broker whose disk and metadata store can lose power at any moment.

After a power cut: acknowledged records are at their offsets. Records that a consumer has read are still there. Created
topics exist with their ids, and deleted topics do not exist. Committed offsets have not moved back. No record is there
twice, and none that was never sent.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from headrace.errors import ErrorCode
from headrace.metadata_stores.memory import MemoryMetadataStore
from headrace.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from headrace.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from headrace.protocol.messages.find_coordinator import FindCoordinatorRequest
from headrace.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from headrace.protocol.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup
from headrace.records.reader import read_records
from tests.fixtures.broker_harness import (
    BrokerHarness,
    Pending,
    batch,
    fetch_request,
    produce_request,
)
from tests.fixtures.crash_files import CrashFileSystem, PowerCut

TOPICS = ("a", "b")
PARTITIONS = 2
topics = st.sampled_from(TOPICS)
partitions = st.integers(0, PARTITIONS - 1)


class CuttingStore(MemoryMetadataStore):
    """A durable store whose process may die just before or just after a commit."""

    def __init__(self) -> None:
        super().__init__()
        self.cut: str | None = None

    def commit(self, checks, operations):
        cut, self.cut = self.cut, None
        if cut == "before":
            raise PowerCut
        versions = super().commit(checks, operations)
        if cut == "after":
            raise PowerCut
        return versions


@dataclass
class Log:
    """The expected state of one partition of one topic id."""

    sent: set[bytes] = field(default_factory=set)
    kept: dict[int, bytes] = field(default_factory=dict)
    """The values of acknowledged records, and of records that a consumer has read, by offset."""


class BrokerMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.store = CuttingStore()
        self.harness = self._start(CrashFileSystem())
        self.logs: dict[tuple[bytes, int], Log] = {}
        self.ids: dict[str, bytes] = {}
        self.doubtful: set[str] = set()
        """The topics whose creation or deletion was interrupted, so that they may exist or not."""
        self.pending: list[tuple[Pending, Log, list[bytes]]] = []
        self.commits: list[tuple[Pending, int]] = []
        self.acknowledged_commit = 0
        self.last_commit = 0
        self.count = 0
        self.running: object | None = None

    def _start(self, files: CrashFileSystem) -> BrokerHarness:
        return BrokerHarness(
            files=files,
            metadata=self.store,
            offsets_topic_num_partitions=2,
            log_segment_bytes=2000,
            log_index_interval_bytes=100,
        )

    @property
    def files(self) -> CrashFileSystem:
        files = self.harness.files
        assert isinstance(files, CrashFileSystem)
        return files

    @contextlib.contextmanager
    def power(self, topic: str | None = None) -> Iterator[None]:
        """Run one step. If the power fails during the step, restart."""
        try:
            yield
        except PowerCut:
            if topic is not None:
                self.doubtful.add(topic)
            self._reboot(seed=self.files.operations)
        self._collect()

    def _reboot(self, seed: int) -> None:
        self._collect()
        entropy, now_ms = self.harness.entropy, self.harness.now_ms
        self.store.cut = None
        self.store.close()
        self.harness = self._start(self.files.after_power_cut(seed))
        self.harness.entropy._count = entropy._count + 1000
        self.harness.now_ms = now_ms
        self.pending.clear()
        self.commits.clear()
        self.running = None
        self._settle_doubts()
        self._check()

    def _settle_doubts(self) -> None:
        for name in self.doubtful:
            topic = self.harness.broker.services.topics.get(name)
            if topic is None:
                self.ids.pop(name, None)
            else:
                self.ids[name] = topic.topic_id
        self.doubtful.clear()

    def _collect(self) -> None:
        """Record the responses that have arrived."""
        for pending, log, sent in self.pending:
            if pending.done:
                (part,) = pending.response.responses[0].partition_responses
                if part.error_code == ErrorCode.NONE:
                    log.kept.update(enumerate(sent, part.base_offset))
        for pending, offset in self.commits:
            if pending.done:
                error = pending.response.topics[0].partitions[0].error_code
                if error == ErrorCode.NONE:
                    self.acknowledged_commit = max(self.acknowledged_commit, offset)
        self.pending = [entry for entry in self.pending if not entry[0].done]
        self.commits = [entry for entry in self.commits if not entry[0].done]

    # Events

    @rule(name=topics)
    def create_topic(self, name: str) -> None:
        with self.power(name):
            row = CreatableTopic(name=name, num_partitions=PARTITIONS, replication_factor=1)
            (result,) = self.harness.call(CreateTopicsRequest(topics=[row])).topics
            assert (result.error_code == ErrorCode.NONE) == (name not in self.ids)
            if result.error_code == ErrorCode.NONE:
                assert result.topic_id not in {topic_id for topic_id, _ in self.logs}
                self.ids[name] = result.topic_id

    @rule(name=topics)
    def delete_topic(self, name: str) -> None:
        with self.power(name):
            request = DeleteTopicsRequest(topics=[DeleteTopicState(name=name)])
            (result,) = self.harness.send(request).response.responses
            assert (result.error_code == ErrorCode.NONE) == (name in self.ids)
            self.ids.pop(name, None)

    @rule(
        name=topics,
        partition=partitions,
        size=st.sampled_from([1, 50, 700]),
        count=st.integers(1, 3),
    )
    def produce(self, name: str, partition: int, size: int, count: int) -> None:
        if name not in self.ids:
            return
        values = [b"%d:%s" % (self.count + i, b"x" * size) for i in range(count)]
        self.count += count
        log = self.logs.setdefault((self.ids[name], partition), Log())
        log.sent.update(values)
        with self.power():
            pending = self.harness.send(produce_request(name, partition, batch(*values)))
            self.pending.append((pending, log, values))

    @rule()
    def commit_offset(self) -> None:
        self.last_commit += 1
        partition = OffsetCommitRequestPartition(
            partition_index=0, committed_offset=self.last_commit
        )
        request = OffsetCommitRequest(
            group_id="g",
            generation_id_or_member_epoch=-1,
            topics=[OffsetCommitRequestTopic(name="watched", partitions=[partition])],
        )
        with self.power():
            self.harness.call(FindCoordinatorRequest(key_type=0, coordinator_keys=["g"]))
            self.commits.append((self.harness.send(request), self.last_commit))

    @precondition(lambda self: self.running is None)
    @rule()
    def start_sync(self) -> None:
        with self.power():
            self.running = self.harness.broker.start_sync()

    @precondition(lambda self: self.running is not None)
    @rule()
    def finish_sync(self) -> None:
        running = self.running
        with self.power():
            running.run()  # type: ignore[union-attr]  # the precondition says that it is there
            self.harness.broker.finish_sync(running, None, self.harness.now_ms)  # type: ignore[arg-type]  # not None
            self.running = None

    @rule(seconds=st.sampled_from([1, 70, 700]))
    def let_time_pass(self, seconds: int) -> None:
        with self.power():
            self.harness.advance(seconds * 1000)

    @precondition(lambda self: self.running is None)
    @rule()
    def restart(self) -> None:
        with self.power():
            self._collect()
            self.harness.restart()
            self.pending.clear()
            self.commits.clear()
            self._check()

    @rule(seed=st.integers(0, 2**20))
    def lose_power(self, seed: int) -> None:
        self._reboot(seed)

    @rule(steps=st.integers(1, 12))
    def lose_power_soon(self, steps: int) -> None:
        self.files.fuse = self.files.operations + steps

    @rule(moment=st.sampled_from(["before", "after"]))
    def lose_power_at_the_next_commit(self, moment: str) -> None:
        self.store.cut = moment

    # Invariants

    @invariant()
    def everything_kept_is_there(self) -> None:
        self._check()

    def _check(self) -> None:
        broker = self.harness.broker
        assert {t.name: t.topic_id for t in broker.services.topics if not t.is_internal} == self.ids
        for name, topic_id in self.ids.items():
            for partition in range(PARTITIONS):
                log = self.logs.setdefault((topic_id, partition), Log())
                found = self._read(name, partition)
                assert len(set(found)) == len(found), "a record is there twice"
                assert set(found) <= log.sent, "a record that no producer sent"
                for offset, value in log.kept.items():
                    assert found[offset] == value, f"{name}-{partition} lost offset {offset}"
                log.kept.update(enumerate(found))
        assert self.acknowledged_commit <= self._committed() <= self.last_commit

    def _read(self, name: str, partition: int) -> list[bytes]:
        found: list[bytes] = []
        while True:
            request = fetch_request((name, partition, len(found)), max_wait_ms=0)
            part = self.harness.send(request).response.responses[0].partitions[0]
            assert part.error_code == ErrorCode.NONE
            records = [r for r in read_records(bytes(part.records)) if r.offset >= len(found)]
            if not records:
                assert part.high_watermark == len(found)
                return found
            assert [r.offset for r in records] == list(range(len(found), len(found) + len(records)))
            found += [r.value or b"" for r in records]

    def _committed(self) -> int:
        group = OffsetFetchRequestGroup(group_id="g", topics=None)
        pending = self.harness.send(OffsetFetchRequest(groups=[group]))
        if not pending.done:
            return self.last_commit  # the response waits for commits that are not durable yet
        (answer,) = pending.response.groups
        if answer.error_code == ErrorCode.NOT_COORDINATOR:
            return 0 if not self.acknowledged_commit else -1  # the group never existed
        assert answer.error_code == ErrorCode.NONE
        return int(answer.topics[0].partitions[0].committed_offset) if answer.topics else 0


BrokerMachine.TestCase.settings = settings(stateful_step_count=40)
TestBrokerMachine = BrokerMachine.TestCase
