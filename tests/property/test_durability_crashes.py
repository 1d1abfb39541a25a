"""The records that a power cut may lose with each durability preset; the test must distinguish the presets.

A broker with `durability=os` has topics of every preset. Records are produced, time advances, and syncs finish or not.
Then the power fails, and the disk has a state that POSIX allows (`CrashFileSystem`).
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from headrace.errors import ErrorCode
from headrace.metadata_stores.memory import MemoryMetadataStore
from headrace.protocol.messages.find_coordinator import FindCoordinatorRequest
from headrace.protocol.messages.init_producer_id import InitProducerIdRequest
from headrace.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from headrace.protocol.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup
from headrace.records.reader import read_records
from tests.fixtures.broker_harness import BrokerHarness, batch, fetch_request, produce_request
from tests.fixtures.crash_files import CrashFileSystem

INTERVAL_MS = 400
PRESETS = {"firm": "fsync", "window": f"interval:{INTERVAL_MS}", "loose": "os"}
SEEDS = 150


@dataclass
class Run:
    harness: BrokerHarness
    acknowledged: dict[str, list[tuple[int, int, bytes]]] = field(
        default_factory=lambda: {name: [] for name in PRESETS}
    )
    """The acknowledged records of each topic: time, offset and value."""
    committed: int = -1
    producer_id: int = -1


def act(chance: random.Random) -> Run:
    """Run a broker for a while. Every due sync starts at once and takes no time, except for the last one."""
    harness = BrokerHarness(
        files=CrashFileSystem(),
        metadata=MemoryMetadataStore(),
        durability="os",
        offsets_topic_num_partitions=1,
        log_segment_bytes=2000,
    )
    run = Run(harness)
    for name, preset in PRESETS.items():
        harness.create_topic(name, headrace_durability=preset)
    harness.call(FindCoordinatorRequest(key_type=0, coordinator_keys=["g"]))
    for number in range(chance.randrange(1, 25)):
        name = chance.choice(list(PRESETS))
        value = b"%d:%s" % (number, b"x" * chance.choice([1, 300]))
        part = harness.call(produce_request(name, 0, batch(value))).responses[0]
        (part,) = part.partition_responses
        assert part.error_code == ErrorCode.NONE
        run.acknowledged[name].append((harness.now_ms, part.base_offset, value))
        if chance.random() < 0.2:
            commit(run, number)
        advance(harness, chance.choice([0, 50, 150, 1000]))
    run.producer_id = harness.call(InitProducerIdRequest(transactional_id=None)).producer_id
    return run


def advance(harness: BrokerHarness, milliseconds: int) -> None:
    end_ms = harness.now_ms + milliseconds
    while harness.now_ms < end_ms:
        harness.advance(min(10, end_ms - harness.now_ms))
        harness.sync()


def commit(run: Run, offset: int) -> None:
    partition = OffsetCommitRequestPartition(partition_index=0, committed_offset=offset)
    topic = OffsetCommitRequestTopic(name="firm", partitions=[partition])
    request = OffsetCommitRequest(group_id="g", generation_id_or_member_epoch=-1, topics=[topic])
    pending = run.harness.send(request)
    assert not pending.done, "a commit waits for its sync, whatever topics do"
    run.harness.sync()
    assert pending.response.topics[0].partitions[0].error_code == ErrorCode.NONE
    run.committed = offset


def after_power_cut(run: Run, seed: int) -> BrokerHarness:
    files = run.harness.files
    assert isinstance(files, CrashFileSystem)
    harness = BrokerHarness(
        files=files.after_power_cut(seed),
        metadata=run.harness.metadata,
        now_ms=run.harness.now_ms,
        durability="os",
        offsets_topic_num_partitions=1,
        log_segment_bytes=2000,
    )
    assert "partition_not_served" not in harness.journal.events("error")
    return harness


def read(harness: BrokerHarness, name: str) -> list[bytes | None]:
    found: list[bytes | None] = []
    while True:
        request = fetch_request((name, 0, len(found)), max_wait_ms=0)
        part = harness.send(request).response.responses[0].partitions[0]
        assert part.error_code == ErrorCode.NONE
        records = [r for r in read_records(bytes(part.records)) if r.offset >= len(found)]
        if not records:
            return found
        found += [record.value for record in records]


def committed_offset(harness: BrokerHarness) -> int:
    request = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id="g", topics=None)])
    (answer,) = harness.call(request).groups
    assert answer.error_code == ErrorCode.NONE
    return int(answer.topics[0].partitions[0].committed_offset) if answer.topics else -1


def test_every_durability_preset_loses_exactly_what_it_documents() -> None:
    lost = dict.fromkeys(PRESETS, 0)
    for seed in range(SEEDS):
        run = act(random.Random(seed))
        cut_ms = run.harness.now_ms
        harness = after_power_cut(run, seed)
        for name, acknowledged in run.acknowledged.items():
            found = read(harness, name)
            sent = [value for _, _, value in acknowledged]
            assert found == sent[: len(found)], (
                f"seed {seed}: {name} is not a prefix of what was sent"
            )
            lost[name] += len(sent) - len(found)
            if name == "window":
                sure = [
                    offset for at_ms, offset, _ in acknowledged if at_ms <= cut_ms - INTERVAL_MS
                ]
                assert len(found) >= len(sure), f"seed {seed}: older than the window, and lost"
        assert committed_offset(harness) == run.committed, f"seed {seed}"
        # An allocated block of producer ids is never allocated again.
        assert (
            harness.call(InitProducerIdRequest(transactional_id=None)).producer_id > run.producer_id
        )
    assert lost["firm"] == 0
    assert 0 < lost["window"] < lost["loose"], "the cut is harsh enough to show the difference"


def test_a_killed_process_loses_no_record_with_any_preset() -> None:
    for seed in range(20):
        run = act(random.Random(seed))
        run.harness.crash()
        for name, acknowledged in run.acknowledged.items():
            assert read(run.harness, name) == [value for _, _, value in acknowledged]
