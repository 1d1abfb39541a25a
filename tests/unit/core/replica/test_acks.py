"""The requests that wait at a leader for acknowledgements."""

from __future__ import annotations

import pytest

from headrace.core.replica.acks import AckQueues
from headrace.core.replica.progress import Progress


def queues_of(isr: set[int], ends: dict[int, int]) -> AckQueues[str]:
    """Return the requests of a leader, broker 1, whose followers have reported their progress."""
    progress = Progress(1, isr)
    for replica, end in ends.items():
        progress.report(replica, end)
    queues = AckQueues[str](progress)
    queues.add(1, 5, "one")
    queues.add(2, 5, "two")
    return queues


@pytest.mark.parametrize(
    ("follower", "released"), [(4, ["one"]), (5, ["one", "two"])], ids=["behind", "at the end"]
)
def test_a_request_is_released_when_as_many_replicas_have_its_records(
    follower: int, released: list[str]
) -> None:
    assert queues_of({1, 2}, {2: follower}).release(5, 0) == released


def test_without_a_lease_a_request_waits_until_its_records_are_committed_too() -> None:
    queues = queues_of({1, 2}, {2: 5})
    assert queues.release(5, 4, only_committed=True) == []
    assert queues.release(5, 5, only_committed=True) == ["one", "two"]


def test_a_committed_record_is_not_acknowledged_for_more_replicas_than_are_in_sync() -> None:
    """A leader alone in the ISR commits by itself. A request for two replicas does not get its acknowledgement."""
    queues = queues_of({1}, {})
    assert queues.release(5, 5, only_committed=True) == ["one"]
    assert queues.clear_above(1) == ["two"]
