"""The server-side group protocol (KIP-848): correct and incorrect requests of members."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.protocol.messages.consumer_group_describe import ConsumerGroupDescribeRequest
from headrace.protocol.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatRequestTopicPartitions,
)
from headrace.protocol.messages.delete_groups import DeleteGroupsRequest
from headrace.protocol.messages.describe_groups import DescribeGroupsRequest
from headrace.protocol.messages.list_groups import ListGroupsRequest
from headrace.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from tests.conformance.differential.members import commit
from tests.conformance.differential.members import join as classic_join
from tests.conformance.differential.pair import Pair, Scenario, Scenarios
from tests.conformance.differential.peer import Peer

pytestmark = pytest.mark.java
scenarios = Scenarios()
LAST = 1


@scenarios.mark()
def test_headrace_coordinates_consumer_groups_as_kafka_does(pair: Pair, scenario: Scenario) -> None:
    pair.compare(scenario)


def beat(peer: Peer, label: str, group: str, member: str, epoch: int, **fields: Any) -> Any:
    owned = fields.pop("owned", None)
    if owned is not None:
        fields["topic_partitions"] = [
            ConsumerGroupHeartbeatRequestTopicPartitions(topic_id=topic_id, partitions=[index])
            for topic_id, index in owned
        ]
    request = ConsumerGroupHeartbeatRequest(
        group_id=group, member_id=member, member_epoch=epoch, **fields
    )
    return peer.ask(label, request, LAST)


def join(peer: Peer, label: str, group: str, member: str, *topics: str, **fields: Any) -> Any:
    return beat(
        peer,
        label,
        group,
        member,
        0,
        rebalance_timeout_ms=30_000,
        subscribed_topic_names=list(topics),
        owned=[],
        **fields,
    )


@scenarios
def heartbeats_refused(peer: Peer) -> None:
    beat(peer, "no such group", "cg-nobody", "m", 1)
    beat(peer, "leaves no such group", "cg-nobody", "m", -1)
    beat(peer, "first without anything", "cg-refused", "m", 0)
    beat(peer, "first without owned", "cg-refused", "m", 0, rebalance_timeout_ms=5)
    beat(peer, "first without topics", "cg-refused", "m", 0, rebalance_timeout_ms=5, owned=[])
    join(peer, "without a member id", "cg-refused", "", "cg-t")
    join(peer, "without a group", "", "m", "cg-t")
    join(peer, "empty instance id", "cg-refused", "m", "cg-t", instance_id="")
    join(peer, "empty rack id", "cg-refused", "m", "cg-t", rack_id="")
    join(peer, "assignor", "cg-refused", "m", "cg-t", server_assignor="mine")
    beat(peer, "static leave without an instance", "cg-refused", "m", -2)
    beat(peer, "epoch -3", "cg-refused", "m", -3)


@scenarios
def one_member(peer: Peer) -> None:
    group = "cg-one"
    first = join(peer, "joins", group, "m", "cg-missing").member_epoch
    beat(peer, "stays", group, "m", first)
    beat(peer, "is ahead", group, "m", first + 1)
    beat(peer, "is behind", group, "m", first - 1, owned=[])
    beat(peer, "says what it owns", group, "m", first, owned=[])
    beat(peer, "owns what it cannot", group, "m", first, owned=[(bytes(15) + b"x", 0)])
    beat(peer, "another member", group, "n", first)
    join(peer, "joins again", group, "m", "cg-missing")
    wish = {"subscribed_topic_names": ["cg-other"]}
    after = beat(peer, "wants something else", group, "m", first, **wish).member_epoch
    beat(peer, "previous epoch", group, "m", first, owned=[])
    beat(peer, "previous epoch without owned", group, "m", first)
    beat(peer, "the new epoch", group, "m", after)
    join(peer, "joins again later", group, "m", "cg-other")
    describe(peer, group, "cg-none")
    beat(peer, "leaves", group, "m", -1)
    beat(peer, "leaves again", group, "m", -1)
    describe(peer, group)
    peer.ask("deleted", DeleteGroupsRequest(groups_names=[group]), 2)
    describe(peer, group)


def fetch(group: str, topic: str, member: str | None, epoch: int) -> OffsetFetchRequest:
    wanted = [OffsetFetchRequestTopics(name=topic, partition_indexes=[0, 1])]
    asked = OffsetFetchRequestGroup(
        group_id=group, member_id=member, member_epoch=epoch, topics=wanted
    )
    return OffsetFetchRequest(groups=[asked])


def given(peer: Peer, group: str, topic: str) -> tuple[int, list[tuple[bytes, int]]]:
    """Join, and send heartbeats until all partitions are assigned; Kafka's coordinator learns of a new topic later."""
    joining = ConsumerGroupHeartbeatRequest(
        group_id=group,
        member_id="m",
        rebalance_timeout_ms=30_000,
        subscribed_topic_names=[topic],
        topic_partitions=[],
    )
    answers = [peer.quiet(joining, LAST)]

    def has_all() -> bool:
        if answers[-1].assignment is not None and answers[-1].assignment.topic_partitions:
            return True
        staying = ConsumerGroupHeartbeatRequest(
            group_id=group, member_id="m", member_epoch=answers[-1].member_epoch
        )
        answers.append(peer.quiet(staying, LAST))
        return False

    peer.wait_for("an assignment", has_all)
    owned = [
        (bytes(part.topic_id), index)
        for part in answers[-1].assignment.topic_partitions
        for index in part.partitions
    ]
    return answers[-1].member_epoch, owned


@scenarios
def offsets_of_members(peer: Peer) -> None:
    group, topic = "cg-parts", "cg-parts-t"
    peer.create(topic, 3)
    epoch, owned = given(peer, group, topic)
    peer.note("given", str(sorted(index for _, index in owned)))
    for label, member, at in (
        ("own", "m", epoch),
        ("ahead", "m", epoch + 1),
        ("behind", "m", epoch - 1),
        ("another member", "n", epoch),
        ("nobody", "", -1),
    ):
        request = commit(group, (topic, 0, 7), member_id=member, generation=at)
        peer.ask(f"commits: {label}", request, 9)
        peer.ask(f"fetches: {label}", fetch(group, topic, member or None, at), 9)
    for version in (8, 9):
        gone = commit("cg-gone", (topic, 0, 7), member_id="m", generation=3)
        peer.ask("commits in a group that is not there", gone, version)
    peer.ask("deletes it", DeleteGroupsRequest(groups_names=[group]), 2)
    beat(peer, "leaves", group, "m", -1)
    peer.ask("fetches when it is empty", fetch(group, topic, None, -1), 9)
    peer.ask("joins it as a classic member when it is empty", classic_join(group), 9)


def describe(peer: Peer, *groups: str) -> None:
    peer.ask("described", ConsumerGroupDescribeRequest(group_ids=list(groups)), LAST)
    for version in (5, 6):
        peer.ask("as classic groups", DescribeGroupsRequest(groups=list(groups)), version)


@scenarios
def static_members(peer: Peer) -> None:
    group = "cg-static"
    join(peer, "joins", group, "m", "cg-missing", instance_id="i")
    join(peer, "another one", group, "n", "cg-missing", instance_id="i")
    beat(peer, "another one stays", group, "n", 1, instance_id="i")
    beat(peer, "unknown instance", group, "n", 1, instance_id="j")
    beat(peer, "leaves for a while", group, "m", -2, instance_id="i")
    beat(peer, "stays after all", group, "m", 1, instance_id="i")
    join(peer, "replaced", group, "n", "cg-missing", instance_id="i")
    beat(peer, "the former one", group, "m", 1, instance_id="i")
    describe(peer, group)
    beat(peer, "leaves", group, "n", -1, instance_id="i")


@scenarios
def groups_listed(peer: Peer) -> None:
    join(peer, "joins", "cg-listed", "m", "cg-missing")
    for types in (["consumer"], ["CONSUMER"]):
        answer = peer.quiet(ListGroupsRequest(types_filter=types), 5)
        found = [g for g in answer.groups if g.group_id == "cg-listed"]
        peer.note("listed", str([(g.group_type, g.protocol_type, g.group_state) for g in found]))
    beat(peer, "leaves", "cg-listed", "m", -1)
