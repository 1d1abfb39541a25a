"""The load under which a server is recorded, and the notes of its acknowledgements.

Each thread has its own connection. It notes each request before the request, and its result after the response. A value
describes itself (`number.size|filler`), so that each record can be checked alone.
"""

from __future__ import annotations

import random
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headrace.protocol.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from headrace.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from headrace.protocol.messages.find_coordinator import FindCoordinatorRequest
from headrace.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from headrace.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from headrace.records.builder import build_batch
from tests.conformance.server.wire import NOW_MS, WireClient
from tests.crash.recording import SECOND, Marker, recorder_environment
from tests.fixtures.processes import ServerProcess

LEDGER, KEYED = "ledger", "keyed"
PARTITIONS = 3
GROUPS = ("alpha", "beta")
WINDOW = 4
SEGMENT_BYTES = "6000"
SETTINGS = {
    "offsets.topic.num.partitions": "2",
    "offsets.topic.segment.bytes": "3000",
    "group.initial.rebalance.delay.ms": "0",
    "log.cleaner.backoff.ms": "100",
}
_LIFE_TIMEOUT_S = 60.0


def value_of(number: int, size: int) -> bytes:
    head = b"%d.%d|" % (number, size)
    return head + b"ab" * (size // 2)


def is_whole(value: bytes) -> bool:
    number, _, size = value.partition(b"|")[0].partition(b".")
    return value == value_of(int(number), int(size))


def batch_for(note: dict[str, Any]) -> bytes:
    """Build the batch that a note describes."""
    numbers = range(note["first"], note["first"] + note["count"])
    keyed = note["topic"] == KEYED
    records = [
        (key_of(number) if keyed else None, value_of(number, note["size"]), (), NOW_MS)
        for number in numbers
    ]
    producer = note["producer"]
    identity = (
        {}
        if producer is None
        else {
            "producer_id": producer[0],
            "producer_epoch": producer[1],
            "base_sequence": note["sequence"],
        }
    )
    return build_batch(records, **identity)


def key_of(number: int) -> bytes:
    return b"k%d" % (number % 7)


@dataclass
class Load:
    """The load of one life of a server. `acknowledged` counts acknowledgements, until the life may end."""

    address: tuple[str, int]
    marker: Marker
    seed: int
    first_number: int
    acknowledged: int = 0
    problem: BaseException | None = None
    stopped: bool = False
    _condition: threading.Condition = field(default_factory=threading.Condition)

    def acknowledge(self, **fields: Any) -> None:
        """Note an acknowledgement that has arrived."""
        self.marker.note(**fields)
        with self._condition:
            self.acknowledged += 1
            self._condition.notify_all()

    def wait_for(self, count: int, also: Callable[[], bool]) -> None:
        def enough() -> bool:
            return self.problem is not None or (self.acknowledged >= count and also())

        with self._condition:
            done = self._condition.wait_for(enough, _LIFE_TIMEOUT_S)
        assert done, "the server acknowledges too little"

    def guarded(self, work: Any, *arguments: Any) -> None:
        """Run a thread's work until the connection breaks."""
        try:
            work(random.Random(f"{self.seed} {work} {arguments}"), *arguments)
        except OSError:
            if not self.stopped:
                self.fail(ConnectionError("the server went away"))
        except BaseException as error:
            self.fail(error)
            raise

    def check(self) -> None:
        """Raise the error of a thread, if there is one."""
        if self.problem is not None:
            raise self.problem

    def fail(self, error: BaseException) -> None:
        with self._condition:
            self.problem = self.problem or error
            self._condition.notify_all()

    # The threads

    def produce(self, chance: random.Random, number: int) -> None:
        """Produce to one partition, several batches at a time; every other producer is idempotent."""
        topic, partition = (KEYED, 0) if number == PARTITIONS else (LEDGER, number)
        sent: deque[dict[str, Any]] = deque()
        value, sequence = self.first_number + number * 1_000_000, 0
        with WireClient(self.address) as client:
            producer = list(client.init_producer_id()) if number % 2 else None
            while True:
                while len(sent) < WINDOW:
                    size = chance.choice([0, 10, 300, 700, 1800])
                    count = chance.randint(1, 3)
                    note: dict[str, Any] = {
                        "topic": topic,
                        "partition": partition,
                        "first": value,
                        "count": count,
                        "size": size,
                        "producer": producer,
                        "sequence": sequence,
                    }
                    value, sequence = value + count, sequence + count
                    sent.append(note)
                    client.send_batch(topic, partition, batch_for(note))
                _, response = client.receive()
                part = response.responses[0].partition_responses[0]
                assert part.error_code == 0, part.error_code
                self.acknowledge(what="produced", base=part.base_offset, **sent.popleft())

    def commit(self, _chance: random.Random, group: str) -> None:
        """Commit offsets that increase by one."""
        offset = self.first_number
        with WireClient(self.address) as client:
            self._find_coordinator(client, group)
            while True:
                offset += 1
                part = OffsetCommitRequestPartition(partition_index=0, committed_offset=offset)
                topic = OffsetCommitRequestTopic(name=LEDGER, partitions=[part])
                self.marker.note(what="committing", group=group, offset=offset)
                response = client.request(
                    OffsetCommitRequest(
                        group_id=group, generation_id_or_member_epoch=-1, topics=[topic]
                    ),
                    8,
                )
                error = response.topics[0].partitions[0].error_code
                assert error == 0, error
                self.acknowledge(what="committed", group=group, offset=offset)

    def _find_coordinator(self, client: WireClient, group: str) -> None:
        deadline = time.monotonic() + _LIFE_TIMEOUT_S
        request = FindCoordinatorRequest(key_type=0, coordinator_keys=[group])
        while client.request(request, 4).coordinators[0].error_code:
            assert time.monotonic() < deadline, "there is no coordinator"

    def administer(self, chance: random.Random) -> None:
        """Create topics, write to them, delete them, and delete old records."""
        number = self.first_number
        with WireClient(self.address) as client:
            while True:
                number += 1
                name = f"churn-{chance.randrange(3)}-{number if chance.random() < 0.5 else 0}"
                self.create(client, name)
                for index in range(chance.randint(0, 3)):
                    note = {
                        "topic": name,
                        "partition": 0,
                        "first": number * 10 + index,
                        "count": 1,
                        "size": 50,
                        "producer": None,
                        "sequence": -1,
                    }
                    part = client.produce(name, 0, batch_for(note))
                    assert part.error_code == 0
                    self.acknowledge(what="produced", base=part.base_offset, **note)
                if chance.random() < 0.8:
                    self.delete(client, name)
                if chance.random() < 0.5:
                    self.trim(client, chance)

    def create(self, client: WireClient, name: str, partitions: int = 1, **configs: str) -> None:
        known = _topic_id(client, name)
        if known is not None:
            self.marker.note(what="created", topic=name, id=known)
            return
        self.marker.note(what="creating", topic=name)
        client.create_topic(name, partitions, segment_bytes=SEGMENT_BYTES, **configs)
        self.acknowledge(what="created", topic=name, id=_topic_id(client, name))

    def delete(self, client: WireClient, name: str) -> None:
        self.marker.note(what="deleting", topic=name)
        request = DeleteTopicsRequest(topics=[DeleteTopicState(name=name)], timeout_ms=10_000)
        (result,) = client.request(request, 6).responses
        assert result.error_code == 0, result
        self.acknowledge(what="deleted", topic=name)

    def trim(self, client: WireClient, chance: random.Random) -> None:
        """Delete the older records of a partition."""
        partition = chance.randrange(PARTITIONS)
        found = client.fetch(LEDGER, partition, 0)
        end = found.high_watermark
        offset = chance.randint(max(0, found.log_start_offset), end)
        self.marker.note(what="trimming", topic=LEDGER, partition=partition, offset=offset)
        wanted = DeleteRecordsPartition(partition_index=partition, offset=offset)
        request = DeleteRecordsRequest(
            topics=[DeleteRecordsTopic(name=LEDGER, partitions=[wanted])], timeout_ms=10_000
        )
        (part,) = client.request(request, 2).topics[0].partitions
        assert part.error_code == 0, part
        self.acknowledge(
            what="trimmed", topic=LEDGER, partition=partition, offset=part.low_watermark
        )

    def prepare(self) -> None:
        """Create the topics that are not deleted."""
        with WireClient(self.address) as client:
            self.create(client, LEDGER, PARTITIONS)
            self.create(
                client,
                KEYED,
                cleanup_policy="compact",
                min_cleanable_dirty_ratio="0.1",
            )
            self.look(client)

    def look(self, client: WireClient) -> None:
        """Read the topics that are not deleted. The records that a consumer has read count as acknowledged."""
        for partition in range(PARTITIONS):
            start = client.fetch(LEDGER, partition, 0).log_start_offset
            records = client.read(LEDGER, partition, start)
            seen = {record.offset: (record.value or b"").decode() for record in records}
            self.marker.note(what="seen", topic=LEDGER, partition=partition, values=seen)

    def threads(self) -> list[threading.Thread]:
        jobs: list[tuple[Any, ...]] = [
            *((self.produce, number) for number in range(PARTITIONS + 1)),
            *((self.commit, group) for group in GROUPS),
            (self.administer,),
        ]
        return [threading.Thread(target=self.guarded, args=job) for job in jobs]


def _topic_id(client: WireClient, name: str) -> str | None:
    request = MetadataRequest(
        topics=[MetadataRequestTopic(topic_id=bytes(16), name=name)],
        allow_auto_topic_creation=False,
    )
    (topic,) = client.request(request, 12).topics
    return None if topic.error_code else bytes(topic.topic_id).hex()


def record_life(
    data: Path,
    recording: Path,
    *,
    seed: int,
    number: int,
    acknowledgements: int,
    arguments: tuple[str, ...] = (),
    directories: int = 1,
    clean: bool = False,
) -> None:
    """Run a recorded server on `data` under load, and end it with SIGKILL, or cleanly after a compaction."""
    further = ["--data", str(data / SECOND)] if directories == 2 else []
    settings = [f"--config={name}={value}" for name, value in SETTINGS.items()]
    server = ServerProcess(
        data,
        log_path=recording.with_suffix(".log"),
        arguments=[*further, *settings, *arguments],
        environment=recorder_environment(data, recording),
    )
    try:
        server.start()
        with Marker(recording) as marker:
            address = (server.host, server.port)
            load = Load(address, marker, seed, number * 100_000_000)
            load.prepare()
            threads = load.threads()
            for thread in threads:
                thread.start()
            load.wait_for(acknowledgements, lambda: not clean or "log_compacted" in server.log)
            load.stopped = True
            if clean:
                assert server.stop() == 0, server.log
            else:
                server.kill()
            for thread in threads:
                thread.join(30)
                assert not thread.is_alive()
        load.check()
    except BaseException:
        print(server.log[-4000:])
        raise
    finally:
        server.kill()
