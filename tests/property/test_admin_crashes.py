"""Administrative changes with power cuts at any moment: an acknowledged change is durable.

The number of partitions never decreases. Log start offsets never move back. Settings have their last acknowledged
values. Deleted groups and offsets stay deleted. Records that were not deleted are still there. A change that a power
cut interrupted may have been made or not.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from headrace.metadata_stores.memory import MemoryMetadataStore
from headrace.protocol.config_operation import ConfigOperation
from headrace.protocol.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsTopic,
)
from headrace.protocol.messages.delete_groups import DeleteGroupsRequest
from headrace.protocol.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from headrace.protocol.messages.find_coordinator import FindCoordinatorRequest
from headrace.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from headrace.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from headrace.protocol.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup
from tests.fixtures.broker_harness import BrokerHarness
from tests.fixtures.crash_files import CrashFileSystem, PowerCut

TOPIC, BROKER = 2, 4
FIRST_PARTITIONS = 2


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


class AdminMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.store = CuttingStore()
        self.harness = self._start(CrashFileSystem())
        self.harness.create_topic("t", partitions=FIRST_PARTITIONS)
        self.harness.call(FindCoordinatorRequest(key_type=0, coordinator_keys=["g"]))
        self.partitions = {FIRST_PARTITIONS}
        """The possible numbers of partitions of the topic: one number, unless a change was interrupted."""
        self.starts: dict[int, int] = {}
        self.ends: dict[int, int] = {}
        self.retention: dict[str, set[str | None]] = {"t": {None}, "1": {None}, "": {None}}
        self.committed: set[int | None] = {None}

    def _start(self, files: CrashFileSystem) -> BrokerHarness:
        return BrokerHarness(
            files=files,
            metadata=self.store,
            offsets_topic_num_partitions=2,
            log_segment_bytes=1000,
        )

    @property
    def files(self) -> CrashFileSystem:
        files = self.harness.files
        assert isinstance(files, CrashFileSystem)
        return files

    @contextlib.contextmanager
    def power(self) -> Iterator[None]:
        """Run one step. If the power fails during the step, restart and skip the rest of the step."""
        try:
            yield
        except PowerCut:
            self.reboot(self.files.operations)

    def reboot(self, seed: int) -> None:
        entropy = self.harness.entropy
        self.store.cut = None
        self.store.close()
        self.harness = self._start(self.files.after_power_cut(seed))
        self.harness.entropy._count = entropy._count + 1000

    # Events

    @rule(partition=st.integers(0, 3), count=st.integers(1, 4))
    def produce(self, partition: int, count: int) -> None:
        if partition >= min(self.partitions):
            return
        with self.power():
            for _ in range(count):
                part = self.harness.produce("t", b"x" * 100, partition=partition)
                assert part.error_code == 0
                self.ends[partition] = part.base_offset + 1

    @rule()
    def grow(self) -> None:
        before, after = min(self.partitions), max(self.partitions) + 1
        if after > 6:
            return
        self.partitions = {*self.partitions, after}
        with self.power():
            row = CreatePartitionsTopic(name="t", count=after, assignments=None)
            (result,) = self.harness.call(CreatePartitionsRequest(topics=[row])).results
            assert result.error_code == 0, before
            self.partitions = {after}

    @rule(partition=st.integers(0, 3), data=st.data())
    def delete_records(self, partition: int, data: st.DataObject) -> None:
        end = self.ends.get(partition, 0)
        if partition >= min(self.partitions):
            return
        offset = data.draw(st.integers(0, end))
        with self.power():
            row = DeleteRecordsPartition(partition_index=partition, offset=offset)
            topics = [DeleteRecordsTopic(name="t", partitions=[row])]
            response = self.harness.call(DeleteRecordsRequest(topics=topics))
            (part,) = response.topics[0].partitions
            assert part.error_code == 0
            assert part.low_watermark >= max(offset, self.starts.get(partition, 0))
            self.starts[partition] = part.low_watermark

    @rule(name=st.sampled_from(["t", "1", ""]), value=st.sampled_from([None, "7000", "9000"]))
    def configure(self, name: str, value: str | None) -> None:
        config = AlterableConfig(
            name="retention.bytes" if name == "t" else "log.retention.bytes",
            value=value,
            config_operation=ConfigOperation.DELETE if value is None else ConfigOperation.SET,
        )
        kind = TOPIC if name == "t" else BROKER
        resource = AlterConfigsResource(resource_type=kind, resource_name=name, configs=[config])
        self.retention[name] = {*self.retention[name], value}
        with self.power():
            request = IncrementalAlterConfigsRequest(resources=[resource])
            (response,) = self.harness.call(request).responses
            assert response.error_code == 0
            self.retention[name] = {value}

    @rule(offset=st.integers(0, 100))
    def commit(self, offset: int) -> None:
        partition = OffsetCommitRequestPartition(partition_index=0, committed_offset=offset)
        request = OffsetCommitRequest(
            group_id="g",
            generation_id_or_member_epoch=-1,
            topics=[OffsetCommitRequestTopic(name="t", partitions=[partition])],
        )
        self.committed = {*self.committed, offset}
        with self.power():
            response = self.harness.call(request)
            assert response.topics[0].partitions[0].error_code == 0
            self.committed = {offset}

    @rule()
    def delete_group(self) -> None:
        self.committed = {*self.committed, None}
        with self.power():
            (result,) = self.harness.call(DeleteGroupsRequest(groups_names=["g"])).results
            assert result.error_code in {0, 69}
            self.committed = {None}

    @rule(seconds=st.sampled_from([1, 70, 700]))
    def let_time_pass(self, seconds: int) -> None:
        with self.power():
            self.harness.advance(seconds * 1000)

    @rule()
    def restart(self) -> None:
        with self.power():
            self.harness.restart()

    @rule(seed=st.integers(0, 2**20))
    def lose_power(self, seed: int) -> None:
        self.reboot(seed)

    @rule(steps=st.integers(1, 12))
    def lose_power_soon(self, steps: int) -> None:
        self.files.fuse = self.files.operations + steps

    @rule(moment=st.sampled_from(["before", "after"]))
    def lose_power_at_the_next_commit(self, moment: str) -> None:
        self.store.cut = moment

    # Invariants

    @invariant()
    def what_was_answered_is_so(self) -> None:
        with self.power():
            self.check()

    def check(self) -> None:
        topic = self.harness.broker.services.topics.require("t")
        assert topic.partitions_count in self.partitions
        for index, partition in enumerate(self.harness.broker.services.partitions.of(topic)):
            assert partition is not None
            assert partition.log_start_offset >= self.starts.get(index, 0)
            assert partition.log_start_offset <= partition.high_watermark
            assert partition.high_watermark >= self.ends.get(index, 0)
            self.starts[index] = partition.log_start_offset
        layers = self.harness.broker.services.settings.layers
        found = {
            "t": topic.settings.get("retention.bytes"),
            "1": layers.broker.get("log.retention.bytes"),
            "": layers.cluster.get("log.retention.bytes"),
        }
        for name, value in found.items():
            assert value in self.retention[name]
        committed = self.fetched()
        assert committed in self.committed
        # Records that a consumer has read are durable too.
        self.partitions = {topic.partitions_count}
        self.retention = {name: {value} for name, value in found.items()}
        self.committed = {committed}

    def fetched(self) -> Any:
        group = OffsetFetchRequestGroup(group_id="g", topics=None)
        (answer,) = self.harness.call(OffsetFetchRequest(groups=[group])).groups
        assert answer.error_code == 0
        return answer.topics[0].partitions[0].committed_offset if answer.topics else None


AdminMachine.TestCase.settings = settings(stateful_step_count=40, deadline=None)
TestAdminMachine = AdminMachine.TestCase
