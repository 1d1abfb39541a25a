"""Put loads on the group coordinator: joins and commits over sockets, and fifty groups of librdkafka at once."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from confluent_kafka import Consumer, KafkaError, TopicPartition

from benchmarks.macro.workloads import QUIET
from headrace.protocol.messages.find_coordinator import FindCoordinatorRequest
from headrace.protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from headrace.protocol.messages.leave_group import LeaveGroupRequest, MemberIdentity
from headrace.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from headrace.protocol.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from tests.conformance.server.wire import WireClient

CONNECTIONS = 8
COMMITS_IN_FLIGHT = 4
FIND_COORDINATOR, JOIN, SYNC, LEAVE, COMMIT = 2, 3, 3, 3, 6  # versions
READY_TIMEOUT_S = 30
GROUPS_TIMEOUT_S = 60
COMMIT_EVERY = 500  # records


class _Group:
    """A group with one member, on its own connection."""

    def __init__(self, bootstrap: str, name: str) -> None:
        host, port = bootstrap.rsplit(":", 1)
        self.client = WireClient((host, int(port)))
        self.name = name
        self._await(
            FindCoordinatorRequest(key=name, key_type=0), FIND_COORDINATOR, lambda x: x.error_code
        )

    def join(self) -> JoinGroupRequest:
        protocol = JoinGroupRequestProtocol(name="range", metadata=bytes(64))
        return JoinGroupRequest(
            group_id=self.name,
            session_timeout_ms=10_000,
            rebalance_timeout_ms=10_000,
            member_id="",
            protocol_type="consumer",
            protocols=[protocol],
        )

    def sync(self, joined: Any) -> SyncGroupRequest:
        mine = SyncGroupRequestAssignment(member_id=joined.member_id, assignment=bytes(64))
        return SyncGroupRequest(
            group_id=self.name,
            generation_id=joined.generation_id,
            member_id=joined.member_id,
            assignments=[mine],
        )

    def leave(self, joined: Any) -> LeaveGroupRequest:
        return LeaveGroupRequest(
            group_id=self.name, members=[MemberIdentity(member_id=joined.member_id)]
        )

    def commit(self, topic: str, offset: int) -> OffsetCommitRequest:
        partition = OffsetCommitRequestPartition(partition_index=0, committed_offset=offset)
        return OffsetCommitRequest(
            group_id=self.name,
            generation_id_or_member_epoch=-1,
            member_id="",
            topics=[OffsetCommitRequestTopic(name=topic, partitions=[partition])],
        )

    def await_loaded(self, topic: str) -> None:
        """Commit until the coordinator accepts it, because the group's partition may still be loading."""
        self._await(self.commit(topic, 0), COMMIT, lambda x: x.topics[0].partitions[0].error_code)

    def _await(self, request: Any, version: int, error_of: Callable[[Any], int]) -> None:
        deadline = time.monotonic() + READY_TIMEOUT_S
        while error := error_of(self.client.request(request, version)):
            if time.monotonic() > deadline:
                raise RuntimeError(f"{self.name}: still error {error}")
            time.sleep(0.02)


def _open(bootstrap: str, topic: str) -> list[_Group]:
    groups = [_Group(bootstrap, f"{topic}-group-{number}") for number in range(CONNECTIONS)]
    for group in groups:
        group.await_loaded(topic)
    return groups


def _all_at_once(groups: Sequence[_Group], requests: Sequence[Any], version: int) -> Sequence[Any]:
    for group, request in zip(groups, requests, strict=True):
        group.client.send(request, version)
    responses = [group.client.receive()[1] for group in groups]
    if failed := [each.error_code for each in responses if each.error_code]:
        raise RuntimeError(f"errors {failed}")
    return responses


def joins(bootstrap: str, topic: str, *, cycles: int) -> dict[str, float]:
    """Let members join, receive their assignment and leave, in eight groups at once; return whole cycles per second."""
    groups = _open(bootstrap, topic)
    begun = time.perf_counter()
    for _ in range(cycles // CONNECTIONS):
        joined = _all_at_once(groups, [each.join() for each in groups], JOIN)
        pairs = list(zip(groups, joined, strict=True))
        _all_at_once(groups, [group.sync(answer) for group, answer in pairs], SYNC)
        _all_at_once(groups, [group.leave(answer) for group, answer in pairs], LEAVE)
    elapsed = time.perf_counter() - begun
    for group in groups:
        group.client.sock.close()
    return {"joins/s": cycles / elapsed}


def commits(bootstrap: str, topic: str, *, count: int) -> dict[str, float]:
    """Commit the offset of one partition, in eight groups at once, with four requests in flight on each connection."""
    groups = _open(bootstrap, topic)
    each_group = count // CONNECTIONS
    begun = time.perf_counter()
    for group in groups:
        for offset in range(COMMITS_IN_FLIGHT):
            group.client.send(group.commit(topic, offset), COMMIT)
    for number in range(each_group):
        for group in groups:
            _, answer = group.client.receive()
            if error := answer.topics[0].partitions[0].error_code:
                raise RuntimeError(f"error {error}")
            if number + COMMITS_IN_FLIGHT < each_group:
                request = group.commit(topic, number + COMMITS_IN_FLIGHT)
                group.client.send(request, COMMIT)
    elapsed = time.perf_counter() - begun
    for group in groups:
        group.client.sock.close()
    return {"commits/s": each_group * CONNECTIONS / elapsed}


class _Reader:
    """A group of one librdkafka consumer that reads a topic once and commits meanwhile."""

    def __init__(self, bootstrap: str, topic: str, number: int, records: int) -> None:
        self.assigned = False
        self.left, self.since_commit, self.commits, self.uncertain = records, 0, 0, 0
        self.failed: list[str] = []
        self.consumer = Consumer(
            {
                **QUIET,
                "bootstrap.servers": bootstrap,
                "group.id": f"{topic}-reader-{number}",
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "on_commit": self._committed,
            }
        )
        self.consumer.subscribe([topic], on_assign=self._assigned)

    def _assigned(self, _: Consumer, __: list[TopicPartition]) -> None:
        self.assigned = True

    def _committed(self, error: KafkaError | None, _: list[TopicPartition]) -> None:
        self.uncertain -= 1
        self.commits += 1
        if error is not None:
            self.failed.append(str(error))

    def turn(self) -> None:
        """Read the available records, and commit when it is time."""
        messages = self.consumer.consume(COMMIT_EVERY, 0)
        self.failed += [str(each.error()) for each in messages if each.error()]
        self.left -= len(messages)
        self.since_commit += len(messages)
        if self.since_commit >= COMMIT_EVERY or (self.since_commit and self.left <= 0):
            self.since_commit = 0
            self.uncertain += 1
            self.consumer.commit(asynchronous=True)

    @property
    def done(self) -> bool:
        """Return whether all records are read and all commits are answered."""
        return self.left <= 0 and not self.uncertain


def many_groups(bootstrap: str, topic: str, *, groups: int, records: int) -> dict[str, float]:
    """Let groups join at once, read a topic of `records` from its start, and commit every 500 records.

    Returns:
        Seconds until all groups had their partitions; records and commits per second over the whole time.
    """
    begun = time.perf_counter()
    readers = [_Reader(bootstrap, topic, number, records) for number in range(groups)]
    joined = 0.0
    while not all(each.done for each in readers):
        for each in readers:
            each.turn()
        now = time.perf_counter() - begun
        if not joined and all(each.assigned for each in readers):
            joined = now
        if now > GROUPS_TIMEOUT_S or any(each.failed for each in readers):
            raise RuntimeError(f"{now:.0f} s: {[each.failed for each in readers if each.failed]}")
        time.sleep(0.001)
    elapsed = time.perf_counter() - begun
    for each in readers:
        each.consumer.close()
    return {
        "s until all have joined": joined,
        "records/s": groups * records / elapsed,
        "commits/s": sum(each.commits for each in readers) / elapsed,
    }
