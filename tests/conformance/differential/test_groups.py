"""The group protocol: correct and incorrect requests of members."""

from __future__ import annotations

import pytest

from headrace.protocol.messages.describe_groups import DescribeGroupsRequest
from headrace.protocol.messages.heartbeat import HeartbeatRequest
from headrace.protocol.messages.join_group import JoinGroupRequest
from headrace.protocol.messages.leave_group import LeaveGroupRequest
from headrace.protocol.messages.list_groups import ListGroupsRequest
from headrace.protocol.messages.sync_group import SyncGroupRequest
from tests.conformance.differential.members import (
    Member,
    heartbeat,
    join,
    leave,
    rebalance,
    sync,
)
from tests.conformance.differential.pair import Pair, Scenario, Scenarios
from tests.conformance.differential.peer import Peer

pytestmark = pytest.mark.java
scenarios = Scenarios()


@scenarios.mark()
def test_headrace_coordinates_classic_groups_as_kafka_does(pair: Pair, scenario: Scenario) -> None:
    pair.compare(scenario)


def describe(peer: Peer, label: str, *groups: str, operations: bool = False) -> None:
    request = DescribeGroupsRequest(groups=list(groups), include_authorized_operations=operations)
    peer.ask(f"described: {label}", request, 5, on="observer")


@scenarios
def group_every_version(peer: Peer) -> None:
    for version in peer.range_of(JoinGroupRequest):
        group = f"group-versions-{version}"
        member = Member(peer, group, f"m{version}")
        member.join(version=version)
        describe(peer, "joined", group)
        member.sync(version=min(version, 5))
        describe(peer, "stable", group)
        member.heartbeat(version=min(version, 4))
        member.join("joins again", version=version)
        member.sync("syncs again", version=min(version, 5))
        member.leave(version=min(version, 5))
        describe(peer, "left", group)
        member.heartbeat("heartbeats after all", version=min(version, 4))


@scenarios
def join_refused(peer: Peer) -> None:
    def ask(label: str, request: JoinGroupRequest) -> None:
        for version in (0, 3, 4, 9):
            peer.ask(label, request, version)

    for group in ("", " "):
        ask(f"group {group!r}", join(group, "m"))
    ask("unknown member", join("group-refused", "nobody"))
    for session in (-1, 0, 999, 1_800_001, 2**31 - 1):
        ask(f"session {session}", join("group-refused", session_ms=session))
    for version in (0, 3):
        peer.ask("no protocols", join("group-refused-p", protocols=()), version)
        peer.ask("no protocol type", join("group-refused-p", protocol_type=""), version)
    for version in (4, 9):
        peer.ask("no protocols", join("group-refused-p", protocols=()), version)
        peer.ask("no protocol type", join("group-refused-p", protocol_type=""), version)
        peer.ask(
            "unknown static member",
            join("group-refused-s", "nobody", instance="i"),
            max(5, version),
        )
        for instance in ("", ".", "..", "a/b", "x" * 250):
            peer.ask(
                f"instance {instance[:4]!r}",
                join("group-refused-i", "m", instance=instance),
                max(5, version),
            )
    describe(peer, "no member joined", "group-refused")


@scenarios
def join_inconsistent(peer: Peer) -> None:
    first = Member(peer, "group-inconsistent", "first")
    first.join(protocols=(("range", b"r1"), ("sticky", b"s1")))
    first.sync()

    def ask(label: str, **options) -> None:
        peer.ask(label, join("group-inconsistent", **options), 3, on="other")

    ask("another protocol", protocols=(("other", b""),))
    ask("another type", protocol_type="connect")
    ask("no protocols", protocols=())
    ask("no type", protocol_type="")
    asked = peer.ask(
        "asks for an id with another protocol",
        join("group-inconsistent", protocols=(("other", b""),)),
        9,
    )
    if asked.error_code == 79:
        peer.ask(
            "comes with it",
            join("group-inconsistent", asked.member_id, protocols=(("other", b""),)),
            9,
        )
    first.heartbeat()
    first.join("changes to another protocol", protocols=(("third", b""),))
    first.sync("syncs", protocol_name="third")
    first.heartbeat()


@scenarios
def sync_refused(peer: Peer) -> None:
    group = "group-sync"
    for version in peer.range_of(SyncGroupRequest):
        peer.ask("no group", sync("group-sync-nowhere", "m", 1), version)
        peer.ask("empty group", sync("", "m", 1), version)
    member = Member(peer, group, "m")
    member.join()
    for version in peer.range_of(SyncGroupRequest):
        peer.ask("unknown member", sync(group, "nobody", 1), version)
        peer.ask("empty member", sync(group, "", 1), version)
        for generation in (-1, 0, 2, 99):
            peer.ask(f"generation {generation}", sync(group, member.member_id, generation), version)
    for name, kind in (
        ("other", "consumer"),
        ("range", "connect"),
        (None, "consumer"),
        ("range", None),
        (None, None),
    ):
        request = sync(group, member.member_id, 1, protocol_name=name, protocol_type=kind)
        peer.ask(f"protocol {name} of {kind}", request, 5)
    peer.ask("instance", sync(group, member.member_id, 1, instance="i"), 5)
    describe(peer, "after all that", group)
    request = sync(group, member.member_id, 1, {member.member_id: b"mine", "nobody": b"lost"})
    peer.ask("with an assignment of an unknown member", request, 5)
    describe(peer, "synced", group)
    member.sync("syncs again")
    peer.ask("wrong protocol when stable", sync(group, member.member_id, 1, protocol_name="o"), 5)
    peer.ask("wrong generation when stable", sync(group, member.member_id, 0), 5)


@scenarios
def sync_without_assignment(peer: Peer) -> None:
    member = Member(peer, "group-unassigned", "m")
    member.join()
    peer.ask("syncs with nothing", sync("group-unassigned", member.member_id, 1), 5)
    describe(peer, "stable", "group-unassigned")


@scenarios
def heartbeat_in_each_state(peer: Peer) -> None:
    group = "group-heartbeat"
    for version in peer.range_of(HeartbeatRequest):
        peer.ask("no group", heartbeat("group-heartbeat-nowhere", "m", 1), version)
        peer.ask("empty group", heartbeat("", "m", 1), version)
    a, b = Member(peer, group, "a"), Member(peer, group, "b")
    a.join()
    a.heartbeat("heartbeats while completing")
    for generation in (-1, 0, 2):
        peer.ask(
            f"completing, generation {generation}", heartbeat(group, a.member_id, generation), 4
        )
    a.sync()
    for version in peer.range_of(HeartbeatRequest):
        a.heartbeat("heartbeats when stable", version=version)
        for generation in (-1, 0, 2):
            peer.ask(
                f"stable, generation {generation}",
                heartbeat(group, a.member_id, generation),
                version,
            )
        peer.ask("unknown member", heartbeat(group, "nobody", 1), version)
        peer.ask("empty member", heartbeat(group, "", 1), version)
    peer.ask("instance", heartbeat(group, a.member_id, 1, instance="i"), 4)
    b.send_join()
    describe_when(peer, group, "PreparingRebalance")
    a.heartbeat("heartbeats while preparing")
    peer.ask("preparing, generation 0", heartbeat(group, a.member_id, 0), 4)
    peer.ask("preparing, the new member", heartbeat(group, b.member_id, 1), 4)
    a.sync("syncs while preparing")
    a.commit("group-heartbeat-t", 5, "commits while preparing")
    a.send_join()
    a.joined()
    b.joined()
    a.heartbeat("heartbeats while completing again")
    a.commit("group-heartbeat-t", 5, "commits while completing")
    (a if b.leads else b).send_sync("follower syncs")
    (b if b.leads else a).send_sync("leader syncs")
    a.answer()
    b.answer()
    describe(peer, "two", group)
    a.leave()
    b.heartbeat("heartbeats after the other left")
    b.join("joins again")
    b.sync()
    describe(peer, "one", group)


def describe_when(peer: Peer, group: str, state: str) -> None:
    """Wait until a group is in a state, which shows that a request on another connection was handled."""
    request = DescribeGroupsRequest(groups=[group])

    def holds() -> bool:
        answer = peer.quiet(request, 5, on="observer")
        return bool(answer.groups[0].group_state == state)

    peer.wait_for(f"{group} {state}", holds)
    describe(peer, state, group)


@scenarios
def leave_of_all_kinds(peer: Peer) -> None:
    group = "group-leave"
    for version in peer.range_of(LeaveGroupRequest):
        peer.ask("no group", leave("group-leave-nowhere", ("m", None)), version)
        peer.ask("empty group", leave("", ("m", None)), version)
        member = Member(peer, group, f"m{version}")
        member.join()
        member.sync()
        peer.ask("unknown member", leave(group, ("nobody", None)), version)
        peer.ask("empty member", leave(group, ("", None)), version)
        member.leave(version=version)
        member.leave("leaves again", version=version)
    a, b = Member(peer, group, "a"), Member(peer, group, "b", instance="i")
    a.send_join()
    a.joined()
    b.send_join()
    describe_when(peer, group, "PreparingRebalance")
    peer.ask("several", leave(group, ("nobody", None), (a.member_id, None), ("", "j")), 5)
    b.joined()
    b.sync()
    peer.ask("no members", leave(group), 5)
    peer.ask("static by a wrong id", leave(group, ("wrong", "i")), 5)
    peer.ask("static by its id without instance", leave(group, ("", "i"), ("", "i")), 5)
    describe(peer, "all left", group)
    pending = peer.ask("asks for an id", join(group), 9)
    peer.ask("an id that was handed out leaves", leave(group, (pending.member_id, None)), 5)
    peer.ask("and comes", join(group, pending.member_id), 9)


@scenarios
def leave_before_joining(peer: Peer) -> None:
    group = "group-leave-early"
    member = Member(peer, group, "m")
    rebalance(member)
    given = peer.ask("asks for an id", join(group), 9)
    peer.ask("leaves", leave(group, (given.member_id, None)), 5)
    member.heartbeat()
    describe(peer, "after that", group)


@scenarios
def static_members(peer: Peer) -> None:
    group = "group-static"
    a = Member(peer, group, "a", instance="one")
    b = Member(peer, group, "b", instance="two")
    a.join()
    a.sync()
    b.send_join()
    describe_when(peer, group, "PreparingRebalance")
    a.join("joins again")
    b.joined()
    b.send_sync()
    a.send_sync()
    a.answer()
    b.answer()
    describe(peer, "two", group)
    for version in (5, 8, 9):
        again = Member(peer, group, f"a, restarted {version},", instance="one")
        again.join(version=version)
        describe(peer, f"after the restart with {version}", group)
        peer.ask(
            "the former one heartbeats",
            heartbeat(group, a.member_id, a.generation, instance="one"),
            4,
        )
        peer.ask("and without its instance", heartbeat(group, a.member_id, a.generation), 4)
        peer.ask("syncs", sync(group, a.member_id, a.generation, instance="one"), 5)
        peer.ask("joins", join(group, a.member_id, instance="one"), 9)
        peer.ask("leaves", leave(group, (a.member_id, "one")), 5)
        again.send_sync()
        again.answer()
        again.heartbeat()
        a = again
    follower = Member(peer, group, "b, restarted,", instance="two")
    follower.join(version=9)
    follower.sync()
    follower.heartbeat()
    describe(peer, "in the end", group)
    follower.leave()
    a.heartbeat()


@scenarios
def static_member_changes(peer: Peer) -> None:
    group = "group-static-changes"
    member = Member(peer, group, "a", instance="one")
    member.join()
    member.sync()
    again = Member(peer, group, "a, changed,", instance="one")
    again.join(version=9, protocols=(("range", b"changed"),))
    describe(peer, "changed", group)


@scenarios
def group_is_full(peer: Peer) -> None:
    group = "group-full"
    members = [Member(peer, group, f"m{number}") for number in range(5)]
    members[0].join()
    for count, member in enumerate(members[1:], 2):
        member.send_join()
        describe_when_members(peer, group, count)
    members[0].send_join("joins again")
    for member in members:
        member.joined()
    peer.ask("one too many", join(group), 3, on="late")
    peer.ask("one too many asks for an id", join(group), 9, on="late")
    for member in members:
        member.send_sync()
    for member in members:
        member.answer()
    peer.ask("one too many when stable", join(group), 3, on="late")


def describe_when_members(peer: Peer, group: str, count: int) -> None:
    request = DescribeGroupsRequest(groups=[group])

    def holds() -> bool:
        return len(peer.quiet(request, 5, on="observer").groups[0].members) == count

    peer.wait_for(f"{count} members in {group}", holds)


@scenarios
def protocol_election(peer: Peer) -> None:
    group = "group-election"
    offers = {
        "a": (("one", b"a1"), ("two", b"a2"), ("three", b"a3")),
        "b": (("two", b"b2"), ("one", b"b1"), ("three", b"b3")),
        "c": (("two", b"c2"), ("three", b"c3")),
    }
    members = {name: Member(peer, group, name) for name in offers}
    members["a"].join(protocols=offers["a"])
    for name in "bc":
        members[name].send_join(protocols=offers[name])
        describe_when_members(peer, group, 2 if name == "b" else 3)
    members["a"].join("joins again", protocols=offers["a"])
    for name in "bc":
        members[name].joined()


@scenarios
def describe_groups(peer: Peer) -> None:
    member = Member(peer, "group-described", "m", instance="inst")
    member.join()
    member.sync()
    for version in peer.range_of(DescribeGroupsRequest):
        groups = ["group-described", "group-nowhere"]
        peer.ask("both", DescribeGroupsRequest(groups=groups), version)
        with_operations = DescribeGroupsRequest(groups=groups, include_authorized_operations=True)
        peer.ask("operations", with_operations, version)
        peer.ask("none", DescribeGroupsRequest(groups=[]), version)
        peer.ask("twice", DescribeGroupsRequest(groups=["group-described"] * 2), version)
        peer.ask("empty", DescribeGroupsRequest(groups=[""]), version)


@scenarios
def list_groups(peer: Peer) -> None:
    member = Member(peer, "group-listed", "m")
    member.join()
    other = Member(peer, "group-listed-left", "o")
    other.join()
    other.sync()
    other.leave()
    mine = {"group-listed", "group-listed-left"}

    def ask(label: str, version: int, *, states=(), types=()) -> None:
        request = ListGroupsRequest(states_filter=list(states), types_filter=list(types))
        answer = peer.quiet(request, version)
        answer.groups = [group for group in answer.groups if group.group_id in mine]
        peer.note_answer(f"{label} v{version}", answer)

    for version in peer.range_of(ListGroupsRequest):
        ask("all", version)
    for version in (4, 5):
        for states in (
            ("Stable",),
            ("Empty",),
            ("empty",),
            ("CompletingRebalance", "Empty"),
            ("NoSuch",),
            ("",),
            ("completing_rebalance",),
            ("Dead",),
        ):
            ask(f"states {states}", version, states=states)
    for types in (
        ("classic",),
        ("Classic",),
        ("consumer",),
        ("none",),
        ("classic", "consumer"),
        ("",),
    ):
        ask(f"types {types}", 5, types=types)
    member.sync()
    ask("stable", 5, states=("Stable",), types=("classic",))


@scenarios
def rebalance_of_three(peer: Peer) -> None:
    group = "group-three"
    a, b, c = (Member(peer, group, name) for name in "abc")
    rebalance(a)
    b.send_join()
    describe_when_members(peer, group, 2)
    c.send_join()
    describe_when_members(peer, group, 3)
    a.heartbeat()
    a.send_join("joins again")
    for member in (a, b, c):
        member.joined()
    describe(peer, "completing", group)
    for member in (b, c, a):
        member.send_sync()
    for member in (a, b, c):
        member.answer()
    describe(peer, "stable", group)
    c.join("a follower joins again with the same")
    c.send_join("a follower joins with something else", protocols=(("range", b"else"),))
    describe_when(peer, group, "PreparingRebalance")
    a.send_join("leader")
    b.leave("leaves while the others wait")
    a.joined()
    c.joined()
    a.join("the leader joins again while completing")
    a.send_sync()
    c.send_sync()
    a.answer()
    c.answer()
    a.send_join("the leader joins when stable")
    describe_when(peer, group, "PreparingRebalance")
    c.heartbeat()
    c.send_join()
    a.joined()
    c.joined()
    describe(peer, "in the end", group)
