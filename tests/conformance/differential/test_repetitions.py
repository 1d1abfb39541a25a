"""Requests that name one thing repeatedly, and requests with wrong counts: whether a broker answers or closes."""

from __future__ import annotations

import struct

import pytest

from headrace.protocol.messages.consumer_group_describe import ConsumerGroupDescribeRequest
from headrace.protocol.messages.delete_groups import DeleteGroupsRequest
from headrace.protocol.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
)
from headrace.protocol.messages.describe_groups import DescribeGroupsRequest
from headrace.protocol.messages.describe_transactions import DescribeTransactionsRequest
from headrace.protocol.messages.find_coordinator import FindCoordinatorRequest
from headrace.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from headrace.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from headrace.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
)
from tests.conformance.differential.pair import Pair, Scenario, Scenarios
from tests.conformance.differential.peer import Peer
from tests.conformance.differential.test_frames import header, send

pytestmark = pytest.mark.java
scenarios = Scenarios()


@scenarios.mark()
def test_headrace_answers_requests_with_repeated_names_or_wrong_counts_as_kafka_does(
    pair: Pair, scenario: Scenario
) -> None:
    pair.compare(scenario)


@scenarios
def names_that_repeat(peer: Peer) -> None:
    peer.await_transactions()
    group = "repeated-group"
    request = FindCoordinatorRequest(coordinator_keys=[group, group], key_type=0)
    peer.ask("find a coordinator twice", request, 4)
    peer.ask("describe a group three times", DescribeGroupsRequest(groups=[group] * 3), 5)
    peer.ask(
        "describe a consumer group twice", ConsumerGroupDescribeRequest(group_ids=[group] * 2), 0
    )
    peer.ask(
        "describe a transaction twice", DescribeTransactionsRequest(transactional_ids=["t", "t"]), 0
    )
    peer.ask("delete a group twice", DeleteGroupsRequest(groups_names=[group] * 2), 2)
    topics = [MetadataRequestTopic(name="repeated-unknown")] * 3
    peer.ask(
        "a topic three times", MetadataRequest(topics=topics, allow_auto_topic_creation=False), 9
    )
    resources = [DescribeConfigsResource(resource_type=2, resource_name="repeated-unknown")] * 2
    peer.ask("a configuration twice", DescribeConfigsRequest(resources=resources), 4)


@scenarios
def offsets_that_repeat(peer: Peer) -> None:
    group = "repeated-offsets"
    plain = [OffsetFetchRequestTopic(name="t", partition_indexes=[0, 0, 1])]
    topics = [OffsetFetchRequestTopics(name="t", partition_indexes=[0, 0, 1])]
    peer.ask(
        "a partition twice",
        OffsetFetchRequest(group_id=group, topics=plain, require_stable=False),
        7,
    )
    rows = [OffsetFetchRequestGroup(group_id=group, topics=topics)] * 2
    peer.ask("a group twice", OffsetFetchRequest(groups=rows, require_stable=False), 8)
    partitions = [ListOffsetsPartition(partition_index=0, timestamp=-1)] * 2
    request = ListOffsetsRequest(
        replica_id=-1, topics=[ListOffsetsTopic(name="t", partitions=partitions)]
    )
    peer.ask("list a partition twice", request, 7)


@scenarios
def counts_that_are_claimed(peer: Peer) -> None:
    """A count that the rest of the request cannot hold."""
    for name, count in (("2^31-1", 2**31 - 1), ("a million", 1_000_000), ("two", 2)):
        send(
            peer,
            f"{name} topics in 5 bytes",
            header(3, 5) + struct.pack(">i", count) + b"\0\1a\0\0",
        )
    inner = struct.pack(">ihi", 1, 1, 0)
    send(
        peer,
        "a string of 32,767 in 4 bytes",
        header(3, 5) + struct.pack(">ih", 1, 32_767) + inner[:4],
    )


@scenarios
def more_than_is_taken(peer: Peer) -> None:
    """More elements than a request may have here; Kafka has no such bound."""
    partitions = struct.pack(">iq", 0, -1) * 40_000
    listing = struct.pack(">ii", -1, 1) + struct.pack(">h1si", 1, b"t", 40_000) + partitions
    send(peer, "40,000 partitions", header(2, 1) + listing)
    names = struct.pack(">h1s", 1, b"g") * 10_001
    send(peer, "10,001 groups", header(15, 0) + struct.pack(">i", 10_001) + names)
    tags = b"\xd1\x0f" + b"".join(_varint(tag) + b"\0" for tag in range(100, 2101))
    send(peer, "2,001 tags in the header", header(3, 9, tags=tags) + b"\1\1\0\0\0")


def _varint(number: int) -> bytes:
    found = bytearray()
    while number > 127:
        found.append(number & 127 | 128)
        number >>= 7
    found.append(number)
    return bytes(found)
