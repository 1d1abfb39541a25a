"""Requests of the group protocol, and a member that keeps the values of the responses."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from headrace.protocol.messages.heartbeat import HeartbeatRequest
from headrace.protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from headrace.protocol.messages.leave_group import LeaveGroupRequest, MemberIdentity
from headrace.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from headrace.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
)
from headrace.protocol.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from tests.conformance.differential.peer import Peer

MEMBER_ID_REQUIRED = 79
SESSION_MS = 30_000
SUBSCRIPTION = b"\0\0" + b"\0\0\0\x01" + b"\0\x01t" + b"\xff\xff\xff\xff"


def join(
    group: str,
    member_id: str = "",
    *,
    instance: str | None = None,
    protocol_type: str = "consumer",
    protocols: tuple[tuple[str, bytes], ...] = (("range", SUBSCRIPTION),),
    session_ms: int = SESSION_MS,
    rebalance_ms: int = SESSION_MS,
) -> JoinGroupRequest:
    return JoinGroupRequest(
        group_id=group,
        session_timeout_ms=session_ms,
        rebalance_timeout_ms=rebalance_ms,
        member_id=member_id,
        group_instance_id=instance,
        protocol_type=protocol_type,
        protocols=[JoinGroupRequestProtocol(name=n, metadata=m) for n, m in protocols],
    )


def sync(
    group: str,
    member_id: str,
    generation: int,
    assignments: dict[str, bytes] | None = None,
    *,
    instance: str | None = None,
    protocol_type: str | None = "consumer",
    protocol_name: str | None = "range",
) -> SyncGroupRequest:
    return SyncGroupRequest(
        group_id=group,
        generation_id=generation,
        member_id=member_id,
        group_instance_id=instance,
        protocol_type=protocol_type,
        protocol_name=protocol_name,
        assignments=[
            SyncGroupRequestAssignment(member_id=key, assignment=value)
            for key, value in (assignments or {}).items()
        ],
    )


def heartbeat(
    group: str, member_id: str, generation: int, *, instance: str | None = None
) -> HeartbeatRequest:
    return HeartbeatRequest(
        group_id=group, generation_id=generation, member_id=member_id, group_instance_id=instance
    )


def leave(group: str, *members: tuple[str, str | None]) -> LeaveGroupRequest:
    return LeaveGroupRequest(
        group_id=group,
        member_id=members[0][0] if members else "",
        members=[MemberIdentity(member_id=m, group_instance_id=i) for m, i in members],
    )


def commit(
    group: str,
    *offsets: tuple[str, int, int],
    member_id: str = "",
    generation: int = -1,
    instance: str | None = None,
    metadata: str | None = "",
    leader_epoch: int = -1,
) -> OffsetCommitRequest:
    topics: dict[str, list[OffsetCommitRequestPartition]] = {}
    for topic, partition, offset in offsets:
        topics.setdefault(topic, []).append(
            OffsetCommitRequestPartition(
                partition_index=partition,
                committed_offset=offset,
                committed_leader_epoch=leader_epoch,
                committed_metadata=metadata,
            )
        )
    return OffsetCommitRequest(
        group_id=group,
        generation_id_or_member_epoch=generation,
        member_id=member_id,
        group_instance_id=instance,
        topics=[OffsetCommitRequestTopic(name=t, partitions=p) for t, p in topics.items()],
    )


def committed(
    version: int, *groups: str, topics: dict[str, list[int]] | None
) -> OffsetFetchRequest:
    if version >= 8:
        wanted = (
            None
            if topics is None
            else [OffsetFetchRequestTopics(name=t, partition_indexes=p) for t, p in topics.items()]
        )
        return OffsetFetchRequest(
            groups=[OffsetFetchRequestGroup(group_id=group, topics=wanted) for group in groups]
        )
    return OffsetFetchRequest(
        group_id=groups[0],
        topics=None
        if topics is None
        else [OffsetFetchRequestTopic(name=t, partition_indexes=p) for t, p in topics.items()],
    )


@dataclass
class Member:
    """One member of one group on a connection of its own."""

    peer: Peer
    group: str
    name: str
    instance: str | None = None
    member_id: str = ""
    generation: int = -1
    leads: bool = False
    members: tuple[str, ...] = ()

    def join(self, label: str = "joins", *, version: int = 9, **options: Any) -> None:
        """Join with the id that the broker gives out, and wait for the answer."""
        self.send_join(label, version=version, **options)
        self.joined()

    def send_join(self, label: str = "joins", *, version: int = 9, **options: Any) -> None:
        """Send JoinGroup; if the broker first gives out an id, use it."""
        options.setdefault("instance", self.instance)
        if not self.member_id and version >= 4 and options["instance"] is None:
            request = join(self.group, **options)
            answer = self.peer.ask(f"{self.name} requires an id", request, version, on=self.name)
            self.member_id = answer.member_id
            if answer.error_code != MEMBER_ID_REQUIRED:
                raise AssertionError(answer)
        request = join(self.group, self.member_id, **options)
        self.peer.send(f"{self.name} {label}", request, version, on=self.name)

    def joined(self) -> Any:
        """Wait for the answer to JoinGroup."""
        answer = self.peer.answer(on=self.name)
        if answer.error_code == 0:
            self.member_id, self.generation = answer.member_id, answer.generation_id
            self.leads = answer.leader == answer.member_id
            self.members = tuple(sorted(member.member_id for member in answer.members))
        return answer

    def send_sync(self, label: str = "syncs", *, version: int = 5, **options: Any) -> None:
        """Send SyncGroup, as leader with an assignment for every member."""
        assignments = dict.fromkeys(self.members, b"for one") if self.leads else {}
        request = sync(
            self.group,
            self.member_id,
            self.generation,
            assignments,
            instance=self.instance,
            **options,
        )
        self.peer.send(f"{self.name} {label}", request, version, on=self.name)

    def answer(self) -> Any:
        """Wait for the next answer."""
        return self.peer.answer(on=self.name)

    def sync(self, label: str = "syncs", **options: Any) -> None:
        self.send_sync(label, **options)
        self.answer()

    def heartbeat(self, label: str = "heartbeats", *, version: int = 4) -> Any:
        request = heartbeat(self.group, self.member_id, self.generation, instance=self.instance)
        return self.peer.ask(f"{self.name} {label}", request, version, on=self.name)

    def leave(self, label: str = "leaves", *, version: int = 5) -> None:
        request = leave(self.group, (self.member_id, self.instance))
        self.peer.ask(f"{self.name} {label}", request, version, on=self.name)

    def commit(self, topic: str, offset: int, label: str = "commits", *, version: int = 8) -> None:
        """Commit an offset of partition 0."""
        request = commit(
            self.group,
            (topic, 0, offset),
            member_id=self.member_id,
            generation=self.generation,
            instance=self.instance,
        )
        self.peer.ask(f"{self.name} {label}", request, version, on=self.name)


def rebalance(*members: Member) -> None:
    """Have all members join and sync."""
    for member in members:
        member.send_join()
    for member in members:
        member.joined()
    for member in members:
        member.send_sync()
    for member in members:
        member.answer()
