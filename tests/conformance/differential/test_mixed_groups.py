"""Groups with members of the classic protocol and of KIP-848's, and those that change from one to the other."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.broker.topic_names import OFFSETS_TOPIC
from headrace.core.coordinator.partitioning import partition_for_key
from headrace.core.coordinator.state.consumer_group import ConsumerGroup
from headrace.core.coordinator.state.consumer_records import ConsumerRecord
from headrace.core.coordinator.state.records import GenerationRecord, decode_records
from headrace.protocol.messages.consumer_group_describe import ConsumerGroupDescribeRequest
from headrace.protocol.messages.delete_groups import DeleteGroupsRequest
from headrace.protocol.messages.describe_groups import DescribeGroupsRequest
from headrace.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from headrace.protocol.messages.list_groups import ListGroupsRequest
from headrace.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from tests.conformance.differential import members
from tests.conformance.differential.members import Member, commit
from tests.conformance.differential.pair import Pair, Scenario, Scenarios
from tests.conformance.differential.peer import Peer
from tests.conformance.differential.test_consumer_groups import beat, fetch, join
from tests.fixtures.classic_consumers import said

pytestmark = pytest.mark.java
scenarios = Scenarios()
LAST = 1
MISSING = "mixed-missing"


@scenarios.mark()
def test_headrace_coordinates_mixed_groups_as_kafka_does(pair: Pair, scenario: Scenario) -> None:
    pair.compare(scenario)


def subscription(*topics: str) -> bytes:
    return said(list(topics), set(), -1)


PROTOCOLS = (("range", subscription(MISSING)), ("roundrobin", subscription(MISSING)))


def classic(peer: Peer, group: str, name: str, **options: Any) -> Member:
    member = Member(peer, group, name, **options)
    member.join(protocols=PROTOCOLS)
    return member


def stable(peer: Peer, group: str, name: str, **options: Any) -> Member:
    member = classic(peer, group, name, **options)
    nothing = b"\0\0\0\0\0\0\xff\xff\xff\xff"
    request = members.sync(
        group, member.member_id, member.generation, {member.member_id: nothing}, **options
    )
    peer.ask(f"{name} syncs", request, 5, on=name)
    return member


def describe(peer: Peer, group: str) -> None:
    peer.ask("described", ConsumerGroupDescribeRequest(group_ids=[group]), LAST)
    peer.ask("as a classic group", DescribeGroupsRequest(groups=[group]), 6)
    listed = [g for g in peer.quiet(ListGroupsRequest(), 5).groups if g.group_id == group]
    peer.note("listed", str([(g.group_type, g.protocol_type, g.group_state) for g in listed]))


def commits(peer: Peer, label: str, group: str, who: tuple[str, int], version: int = 9) -> None:
    member, epoch = who
    request = commit(group, ("mixed-t", 0, 7), member_id=member, generation=epoch)
    peer.ask(f"{label}: commits v{version}", request, version)
    peer.ask(f"{label}: fetches", fetch(group, "mixed-t", member or None, epoch), 9)


@scenarios
def a_consumer_joins_a_classic_group(peer: Peer) -> None:
    group = "mixed-upgrade"
    a = stable(peer, group, "a")
    describe(peer, group)
    epoch = join(peer, "joins", group, "m", MISSING).member_epoch
    describe(peer, group)
    a.heartbeat()
    a.sync("syncs in vain")
    commits(peer, "before it has joined again", group, (a.member_id, a.generation))
    commits(peer, "the consumer", group, ("m", epoch))
    commits(peer, "the consumer, an old version", group, ("m", epoch), 8)
    a.join("joins again", protocols=PROTOCOLS)
    a.heartbeat("heartbeats before it syncs")
    a.sync()
    a.heartbeat("heartbeats after it has synced")
    a.generation -= 1
    a.heartbeat("heartbeats of the old generation")
    a.sync("syncs of the old generation")
    commits(peer, "old generation", group, (a.member_id, a.generation))
    a.generation += 1
    commits(peer, "new generation", group, (a.member_id, a.generation))
    commits(peer, "nobody", group, ("", -1))
    beat(peer, "the consumer stays", group, "m", epoch)
    describe(peer, group)
    beat(peer, "the consumer leaves", group, "m", -1)
    describe(peer, group)
    a.heartbeat("heartbeats when the consumer has left")
    a.join("joins again", protocols=PROTOCOLS)
    a.leave()
    describe(peer, group)
    peer.ask("deleted", DeleteGroupsRequest(groups_names=[group]), 2)


@scenarios
def a_classic_member_joins_a_consumer_group(peer: Peer) -> None:
    group = "mixed-join"
    join(peer, "joins", group, "m", MISSING)
    a = classic(peer, group, "a")
    a.heartbeat("heartbeats before it syncs")
    request = members.sync(group, a.member_id, a.generation, protocol_name="roundrobin")
    peer.ask("syncs with another protocol", request, 5)
    request = members.sync(group, a.member_id, a.generation, protocol_type="connect")
    peer.ask("syncs with another type", request, 5)
    a.sync()
    a.sync("syncs again")
    beat(peer, "the consumer's next", group, "m", 2)
    describe(peer, group)
    a.join("joins again without a change", protocols=PROTOCOLS)
    a.join("joins again with another topic", protocols=(("range", subscription("other")),))
    beat(peer, "the consumer learns", group, "m", 3)
    beaten = members.heartbeat(group, "m", 3)
    peer.ask("a consumer heartbeats as a classic member", beaten, 4)
    request = members.sync(group, "m", 3)
    peer.ask("a consumer syncs as a classic member", request, 5)
    leaving = members.leave(group, ("m", None), (a.member_id, None), ("x", None))
    peer.ask("both leave, and an unknown member", leaving, 5)
    describe(peer, group)
    peer.ask("not to be deleted", DeleteGroupsRequest(groups_names=[group]), 2)
    beat(peer, "the consumer leaves", group, "m", -1)


@scenarios
def classic_members_refused(peer: Peer) -> None:
    group = "mixed-refused"
    join(peer, "joins", group, "m", MISSING)
    classic(peer, group, "a")
    wrong: dict[str, dict[str, Any]] = {
        "another type": {"protocol_type": "connect"},
        "no protocol": {"protocols": ()},
        "garbled": {"protocols": (("range", b"\0"),)},
        "no common protocol": {"protocols": (("sticky", subscription(MISSING)),)},
    }
    for label, options in wrong.items():
        peer.ask(label, members.join(group, "x", **options), 9)
    peer.ask("a made-up id", members.join(group, "x", protocols=PROTOCOLS), 9)
    peer.ask("an unknown static id", members.join(group, "y", instance="i", protocols=PROTOCOLS), 9)
    for version in (0, 3):
        peer.ask(f"version {version}", members.join(group, protocols=PROTOCOLS), version)
    peer.ask("too many", members.join(group, "z", protocols=PROTOCOLS), 9)
    describe(peer, group)


@scenarios
def groups_that_stay_classic(peer: Peer) -> None:
    group = "mixed-connect"
    a = Member(peer, group, "a")
    a.join(protocol_type="connect", protocols=(("default", b""),))
    join(peer, "joins", group, "m", MISSING)
    beat(peer, "is a member of a classic group", group, a.member_id, a.generation)
    a.leave()
    garbled = "mixed-garbled"
    a = Member(peer, garbled, "a")
    a.join(protocols=(("range", b"\0"),))
    join(peer, "joins a garbled group", garbled, "m", MISSING)


@scenarios
def an_upgrade_between_the_phases(peer: Peer) -> None:
    group = "mixed-phases"
    a = classic(peer, group, "a")
    join(peer, "joins before the leader has assigned", group, "m", MISSING)
    a.sync("syncs in vain")
    a.heartbeat()
    a.join("joins again", protocols=PROTOCOLS)
    a.sync()
    describe(peer, group)


@scenarios
def static_members_of_both_kinds(peer: Peer) -> None:
    group = "mixed-static"
    a = stable(peer, group, "a", instance="i")
    join(peer, "takes the place", group, "m", MISSING, instance_id="i")
    describe(peer, group)
    a.heartbeat("heartbeats when its place is taken")
    a.leave("leaves when its place is taken")
    join(peer, "another consumer", group, "n", MISSING, instance_id="i")
    a.member_id = ""
    a.join("takes the place back", protocols=PROTOCOLS)
    beat(peer, "the consumer stays", group, "m", 2, instance_id="i")
    describe(peer, group)
    a.heartbeat()
    a.leave()


@scenarios
def static_members_in_a_mixed_group(peer: Peer) -> None:
    group = "mixed-places"
    join(peer, "joins", group, "m", MISSING)
    a = classic(peer, group, "a", instance="i")
    a.sync()
    b = Member(peer, group, "b", instance="i")
    b.join("takes the place", protocols=PROTOCOLS)
    a.heartbeat("heartbeats when its place is taken")
    a.sync("syncs when its place is taken")
    join(peer, "a consumer takes it", group, "n", MISSING, instance_id="i")
    beat(peer, "leaves for a while", group, "n", -2, instance_id="i")
    b.member_id = ""
    b.join("takes it back", protocols=PROTOCOLS)
    request = members.leave(group, ("", "i"), ("", "j"))
    peer.ask("removed by an administrator", request, 5)
    describe(peer, group)


@scenarios
def a_consumer_is_removed_by_an_administrator(peer: Peer) -> None:
    group = "mixed-removed"
    join(peer, "joins", group, "m", MISSING)
    a = classic(peer, group, "a")
    a.sync()
    peer.ask("the consumer is removed", members.leave(group, ("m", None)), 5)
    describe(peer, group)
    a.heartbeat()
    a.leave()


@scenarios
def members_that_change_their_kind(peer: Peer) -> None:
    group = "mixed-changed"
    join(peer, "joins", group, "m", MISSING)
    join(peer, "joins too", group, "n", MISSING)
    peer.ask("a consumer joins as a classic one", members.join(group, "n", protocols=PROTOCOLS), 9)
    describe(peer, group)
    beat(peer, "and stays as a consumer", group, "n", 3)
    describe(peer, group)
    beat(peer, "leaves", group, "n", -1)
    beat(peer, "leaves too", group, "m", -1)


def stored(peer: Peer, label: str, group: str) -> None:
    """Note what Headrace makes of the records that the broker has of a group, whichever broker wrote them."""
    topics = [MetadataRequestTopic(name=OFFSETS_TOPIC)]
    (topic,) = peer.quiet(MetadataRequest(topics=topics), 9).topics
    partition = partition_for_key(group, len(topic.partitions))
    wanted = FetchPartition(partition=partition, partition_max_bytes=1 << 24)
    request = FetchRequest(
        max_bytes=1 << 24, topics=[FetchTopic(topic=OFFSETS_TOPIC, partitions=[wanted])]
    )
    (answer,) = peer.quiet(request, 12).responses[0].partitions
    consumers, generation = ConsumerGroup(group), None
    for _, record in decode_records(answer.records or b""):
        if isinstance(record, GenerationRecord) and record.group_id == group:
            generation = record.generation
        elif isinstance(record, ConsumerRecord) and record.group_id == group:
            consumers.replay(record)
    if generation is not None:
        members_ = [
            (m.session_timeout_ms, m.subscription, m.assignment) for m in generation.members
        ]
        told = (generation.number, generation.protocol_type, generation.protocol_name)
        peer.note(f"{label}: stored as a classic group", str((*told, members_)))
    if not consumers.is_void:
        kinds = sorted(
            str((m.topics, m.rebalance_timeout_ms, m.classic)) for m in consumers.members.values()
        )
        current = sorted((c.epoch, c.state.name) for c in consumers.current.values())
        image = (consumers.epoch, consumers.assignment_epoch, kinds, current)
        peer.note(f"{label}: stored as a consumer group", str(image))


@scenarios
def what_is_stored(peer: Peer) -> None:
    group = "mixed-stored"
    a = stable(peer, group, "a")
    stored(peer, "classic", group)
    join(peer, "joins", group, "m", MISSING)
    stored(peer, "upgraded", group)
    a.join("joins again", protocols=PROTOCOLS)
    a.sync()
    stored(peer, "mixed", group)
    beat(peer, "leaves", group, "m", -1)
    stored(peer, "downgraded", group)
    a.leave()
