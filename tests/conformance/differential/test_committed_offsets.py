"""OffsetCommit, OffsetFetch, OffsetDelete and DeleteGroups."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.protocol.messages.delete_groups import DeleteGroupsRequest
from headrace.protocol.messages.delete_topics import DeleteTopicsRequest
from headrace.protocol.messages.offset_commit import OffsetCommitRequest
from headrace.protocol.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)
from headrace.protocol.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestTopic
from tests.conformance.differential.members import Member, commit, committed
from tests.conformance.differential.pair import Pair, Scenario, Scenarios
from tests.conformance.differential.peer import Peer

pytestmark = pytest.mark.java
scenarios = Scenarios()
LONGEST_METADATA = 100


@scenarios.mark()
def test_headrace_stores_and_deletes_committed_offsets_as_kafka_does(
    pair: Pair, scenario: Scenario
) -> None:
    pair.compare(scenario)


@scenarios
def commit_every_version(peer: Peer) -> None:
    topic = "commit-versions"
    peer.create(topic, 3)
    for version in peer.range_of(OffsetCommitRequest):
        group = f"commit-{version}"
        ask = peer.ask
        ask("commits", commit(group, (topic, 0, 5), (topic, 2, 7), leader_epoch=3), version)
        ask("with metadata", commit(group, (topic, 1, 1), metadata="note"), version)
        ask("null metadata", commit(group, (topic, 1, 2), metadata=None), version)
        ask(
            "longest metadata",
            commit(group, (topic, 1, 3), metadata="x" * LONGEST_METADATA),
            version,
        )
        ask(
            "too long",
            commit(group, (topic, 1, 4), (topic, 0, 4), metadata="x" * (LONGEST_METADATA + 1)),
            version,
        )
        ask("umlauts", commit(group, (topic, 1, 4), metadata="ä" * 60), version)
        ask("mixed", commit(group, (topic, 0, 6), (topic, 9, 6), ("commit-nowhere", 0, 6)), version)
        ask("unknown only", commit(group, ("commit-nowhere", 0, 6)), version)
        ask("bad name", commit(group, ("a/b", 0, 6)), version)
        ask("negative partition", commit(group, (topic, -1, 6)), version)
        for offset in (-1, -5, 2**62):
            ask(f"offset {offset}", commit(group, (topic, 0, offset)), version)
        ask("none", commit(group), version)
        ask("empty group", commit("", (topic, 0, 1)), version)
        ask("unknown generation", commit(group, (topic, 0, 1), generation=4), version)
        ask("unknown member", commit(group, (topic, 0, 1), member_id="unknown"), version)
        ask(
            "unknown member and generation",
            commit(group, (topic, 0, 1), member_id="unknown", generation=1),
            version,
        )
        for fetch_version in peer.range_of(OffsetFetchRequest):
            ask(
                "fetched", committed(fetch_version, group, topics={topic: [0, 1, 2]}), fetch_version
            )


@scenarios
def commit_as_a_member(peer: Peer) -> None:
    topic, group = "commit-member", "commit-member"
    peer.create(topic)
    member = Member(peer, group, "m")
    member.join()
    member.commit(topic, 1, "commits while completing")
    peer.ask("no member while completing", commit(group, (topic, 0, 9)), 8)
    member.sync()
    for version in peer.range_of(OffsetCommitRequest):
        member.commit(topic, 2, version=version)
        ours: dict[str, Any] = {"member_id": member.member_id, "generation": member.generation}
        cases: dict[str, dict[str, Any]] = {
            "nobody": {},
            "older generation": {**ours, "generation": 0},
            "newer generation": {**ours, "generation": 2},
            "no generation": {**ours, "generation": -1},
            "no member": {**ours, "member_id": ""},
            "another member": {**ours, "member_id": "nobody"},
        }
        for label, options in cases.items():
            peer.ask(label, commit(group, (topic, 0, 3), **options), version)
        if version >= 7:
            peer.ask("instance", commit(group, (topic, 0, 3), instance="i", **ours), version)
        peer.ask("unknown topic", commit(group, ("commit-nowhere", 0, 3), **ours), version)
        wrong: dict[str, Any] = {**ours, "generation": 9}
        peer.ask(
            "wrong and unknown topic", commit(group, ("commit-nowhere", 0, 3), **wrong), version
        )
    member.leave()
    member.commit(topic, 4, "commits after all")
    peer.ask("no member when empty", commit(group, (topic, 0, 5)), 8)
    peer.ask("a generation when empty", commit(group, (topic, 0, 5), generation=1), 8)
    peer.ask("in the end", committed(7, group, topics={topic: [0]}), 7)


@scenarios
def fetch_committed(peer: Peer) -> None:
    topic = "committed"
    peer.create(topic, 2)
    peer.quiet(commit("committed-a", (topic, 0, 5)), 8)
    peer.quiet(commit("committed-b", (topic, 1, 7), metadata="b"), 8)
    for version in peer.range_of(OffsetFetchRequest):
        cases: dict[str, dict[str, list[int]] | None] = {
            "known": {topic: [0]},
            "unknown partition": {topic: [0, 1, 9, -1]},
            "unknown topic": {"committed-nowhere": [0]},
            "bad name": {"a/b": [0]},
            "no partitions": {topic: []},
            "no topics": {},
            "all": None,
        }
        for label, topics in cases.items():
            if topics is None and version < 2:
                continue
            for group in ("committed-a", "committed-nobody", ""):
                request = committed(version, group, topics=topics)
                request.require_stable = version % 2 == 1
                peer.ask(f"{label} of {group!r}", request, version)
    twice = committed(7, "committed-a", topics={topic: [0, 0]})
    assert twice.topics is not None
    twice.topics.append(OffsetFetchRequestTopic(name=topic, partition_indexes=[0]))
    peer.ask("twice", twice, 7)
    peer.ask(
        "several", committed(8, "committed-a", "committed-b", "committed-nobody", topics=None), 8
    )
    peer.ask("the same group twice", committed(8, "committed-a", "committed-a", topics=None), 8)
    peer.ask("no groups", OffsetFetchRequest(groups=[]), 8)


@scenarios
def offsets_of_a_deleted_topic(peer: Peer) -> None:
    peer.create("committed-then-gone")
    peer.quiet(commit("committed-gone", ("committed-then-gone", 0, 5)), 8)
    peer.quiet(DeleteTopicsRequest(topic_names=["committed-then-gone"], timeout_ms=10_000), 5)
    everything = committed(7, "committed-gone", topics=None)
    # Kafka deletes the topic first and its offsets a moment later.
    peer.wait_for("forgotten", lambda: peer.quiet(everything, 7).topics == [])
    peer.ask("after the deletion", committed(7, "committed-gone", topics=None), 7)
    peer.create("committed-then-gone")
    peer.ask("and the creation", committed(7, "committed-gone", topics=None), 7)


@scenarios
def offset_delete(peer: Peer) -> None:
    topic, group = "offset-delete", "offset-delete"
    peer.create(topic, 2)

    def ask(label: str, group: str, *partitions: tuple[str, int]) -> None:
        topics = [
            OffsetDeleteRequestTopic(
                name=name, partitions=[OffsetDeleteRequestPartition(partition_index=index)]
            )
            for name, index in partitions
        ]
        peer.ask(label, OffsetDeleteRequest(group_id=group, topics=topics), 0)

    ask("no group", "offset-delete-nobody", (topic, 0))
    ask("no group, no partition", "offset-delete-nobody", (topic, 9))
    ask("empty group", "", (topic, 0))
    ask("empty group, no partition", "", (topic, 9))
    peer.quiet(commit(group, (topic, 0, 5), (topic, 1, 6)), 8)
    ask("known", group, (topic, 0))
    ask("unknown partition", group, (topic, 9))
    ask("negative partition", group, (topic, -1))
    ask("known and unknown", group, (topic, 0), (topic, 9), ("offset-delete-nowhere", 0))
    ask("unknown topic", group, ("offset-delete-nowhere", 0))
    ask("nothing committed", group, (topic, 0))
    ask("none", group)
    peer.ask("what is left", committed(7, group, topics=None), 7)
    member = Member(peer, group, "m")
    member.join()
    ask("with a member", group, (topic, 1))
    member.sync()
    ask("with a stable member", group, (topic, 1), ("t", 0))
    peer.ask("what is left then", committed(7, group, topics=None), 7)


@scenarios
def delete_groups(peer: Peer) -> None:
    topic = "delete-groups"
    peer.create(topic)
    for version in peer.range_of(DeleteGroupsRequest):
        name = f"delete-groups-{version}"
        peer.quiet(commit(name, (topic, 0, 5)), 8)
        member = Member(peer, f"{name}-full", "m")
        member.join()
        peer.ask(
            "all kinds",
            DeleteGroupsRequest(groups_names=[name, f"{name}-full", "delete-groups-nobody", ""]),
            version,
        )
        peer.ask("gone", DeleteGroupsRequest(groups_names=[name]), version)
        peer.ask("none", DeleteGroupsRequest(groups_names=[]), version)
        peer.ask("its offsets", committed(7, name, topics={topic: [0]}), 7)
        member.sync()
        member.leave()
        peer.ask("twice", DeleteGroupsRequest(groups_names=[f"{name}-full"] * 2), version)
