"""The partitions that a follower names in its fetches from one leader."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from headrace.broker.replication.fetch_plan import FetchPlan
from headrace.core.replica.role import UNKNOWN_LEADERSHIP
from headrace.protocol.messages.fetch import FetchRequest, FetchResponse
from headrace.types import TopicPartition

SESSION = 7


class Followed:
    """A follower's partition with an empty log."""

    def __init__(self, index: int) -> None:
        self.topic_partition = TopicPartition("t", index)
        self.log_dir = SimpleNamespace(logs=SimpleNamespace(topic_id=lambda _: bytes(16)))
        self.leader_epoch, self.sync_interval_ms = 1, 0
        self.newest = UNKNOWN_LEADERSHIP
        self.log = SimpleNamespace(log_start_offset=0, log_end_offset=0, synced_offset=0)


def exchange(plan: FetchPlan) -> FetchRequest:
    """Return the next request, to which the leader responds without news."""
    request = plan.request(2, 1, 500)
    assert list(plan.received(FetchResponse(session_id=SESSION))) == []
    return request


def test_a_partition_that_returns_to_a_session_is_fetched_in_full() -> None:
    """The leader takes for known what it has reported before the partition was removed."""
    plan = FetchPlan(1_000, 1_000)
    first: Any = Followed(0)
    second: Any = Followed(1)
    plan.add(first)
    plan.add(second)
    exchange(plan)
    plan.remove(first)
    assert exchange(plan).session_id == SESSION
    plan.add(first)
    request = exchange(plan)
    assert request.session_id == 0
    assert [each.partition for each in request.topics[0].partitions] == [1, 0]
