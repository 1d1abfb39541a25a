"""A follower: where it fetches, and what the responses of its leader do to its log."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from headrace.core.replica.following import (
    Append,
    BeginAt,
    Fetched,
    Following,
    Position,
    Stop,
    Truncate,
    offsets_after,
)

EPOCH = 7


@dataclass
class Log:
    """A log as the leader epoch of each record."""

    epochs: list[int] = field(default_factory=list)
    high_watermark: int = 0
    synced_offset: int = 0
    log_start_offset: int = 0

    @property
    def log_end_offset(self) -> int:
        return self.log_start_offset + len(self.epochs)

    def epoch_at(self, offset: int) -> int:
        index = offset - self.log_start_offset
        return self.epochs[index] if 0 <= index < len(self.epochs) else -1

    def end_offset_for_epoch(self, epoch: int) -> tuple[int, int]:
        known = [each for each in self.epochs if each <= epoch]
        if not known or epoch > self.epochs[-1]:
            return -1, -1
        return known[-1], self.log_start_offset + len(known)


def following(*, syncs_first: bool = False) -> Following:
    return Following(EPOCH, syncs_first=syncs_first)


def test_a_follower_fetches_from_its_log_end_offset_with_the_epoch_of_its_last_record() -> None:
    assert following().begin(Log([1, 1, 4])) == Position(EPOCH, 3, 4, 0)


def test_an_empty_log_has_no_last_epoch() -> None:
    assert following().begin(Log(log_start_offset=5)) == Position(EPOCH, 5, -1, 5)


def test_a_follower_that_syncs_first_promises_only_what_is_synced() -> None:
    """The leader takes the fetch offset for the progress of the follower."""
    replica, log = following(syncs_first=True), Log([1, 1, 4], synced_offset=2)
    assert not replica.is_ready(log)
    assert replica.begin(log) == Position(EPOCH, 2, 1, 0)
    log.synced_offset = 3
    assert replica.is_ready(log)
    assert replica.begin(log) == Position(EPOCH, 3, 4, 0)
    assert following().is_ready(Log([1], synced_offset=0))


def test_records_are_appended() -> None:
    replica, log = following(), Log([1])
    assert replica.decide(replica.begin(log), Fetched(1, 0), log) == Append()


def test_a_response_counts_once() -> None:
    """A divergence that is answered twice would truncate twice: the log may have new records meanwhile."""
    replica, log = following(), Log([1, 2, 2])
    position = replica.begin(log)
    late = Fetched(1, 0, diverging=(1, 1))
    assert replica.decide(position, late, log) == Truncate(1)
    assert replica.decide(position, late, log) is None


def test_the_response_to_an_earlier_fetch_is_dropped() -> None:
    replica, log = following(), Log([1, 2, 2])
    first = replica.begin(log)
    second = replica.begin(log)
    assert replica.decide(first, Fetched(1, 0, diverging=(1, 1)), log) is None
    assert replica.decide(second, Fetched(1, 0), log) == Append()


def test_the_response_of_another_leader_epoch_is_dropped() -> None:
    log = Log([1, 2, 2])
    position = following().begin(log)
    assert following().decide(position, Fetched(1, 0, diverging=(1, 1)), log) is None


def test_a_response_for_another_offset_is_dropped() -> None:
    replica, log = following(), Log([1, 2])
    position = replica.begin(log)
    log.epochs.append(2)
    assert replica.decide(position, Fetched(1, 0), log) is None


def test_after_an_unclean_election_a_replica_with_older_records_begins_its_log_anew() -> None:
    """The leader may lack records that were committed. The high watermark counts again from the leader's start."""
    log, fetched = Log([1, 2, 2], high_watermark=3), Fetched(1, 0, diverging=(1, 1))
    for unclean_epoch, decision in [(-1, Stop), (2, Stop), (3, BeginAt), (EPOCH, BeginAt)]:
        replica = Following(EPOCH, syncs_first=False, unclean_epoch=unclean_epoch)
        assert isinstance(replica.decide(replica.begin(log), fetched, log), decision)
    log.high_watermark = 1
    replica = Following(EPOCH, syncs_first=False, unclean_epoch=EPOCH)
    assert replica.decide(replica.begin(log), fetched, log) == Truncate(1)


# The seven cases of KIP-279: the follower's epochs, the leader's (epoch, end offset), the follower's new end


@pytest.mark.parametrize(
    ("own", "diverging", "end"),
    [
        pytest.param([1, 1, 1], (1, 2), 2, id="the leader's epoch ended earlier"),
        pytest.param([1, 1, 3], (1, 9), 2, id="the leader does not have the own last epoch"),
        pytest.param([1, 2, 2], (1, 1), 1, id="both ended the common epoch at one offset"),
        pytest.param([1, 1, 1, 2], (1, 2), 2, id="the leader ended the common epoch earlier"),
        pytest.param([1, 2, 4, 4], (3, 3), 2, id="the own largest epoch below counts"),
        pytest.param([5, 5], (3, 1), 1, id="no own epoch at or below: the leader's end"),
        pytest.param([2, 2, 2], (-1, 2), 2, id="the leader has no epoch"),
        pytest.param([2, 2, 2], (1, 0), 0, id="nothing is common"),
    ],
)
def test_a_log_is_truncated_to_the_end_of_the_last_common_epoch(
    own: list[int], diverging: tuple[int, int], end: int
) -> None:
    replica, log = following(), Log(own)
    fetched = Fetched(9, 0, diverging=diverging)
    assert replica.decide(replica.begin(log), fetched, log) == Truncate(end)


def test_nothing_below_the_high_watermark_is_truncated() -> None:
    replica, log = following(), Log([1, 1, 2], high_watermark=2)
    decision = replica.decide(replica.begin(log), Fetched(3, 0, diverging=(1, 1)), log)
    assert isinstance(decision, Stop)
    assert "offset 1" in decision.reason
    assert replica.decide(replica.begin(log), Fetched(3, 0, diverging=(1, 2)), log) == Truncate(2)


def test_a_log_begins_anew_when_the_leader_has_deleted_the_next_offset() -> None:
    replica, log = following(), Log([1, 1], high_watermark=2)
    fetched = Fetched(20, 12, is_out_of_range=True)
    assert replica.decide(replica.begin(log), fetched, log) == BeginAt(12)


def test_an_offset_out_of_range_without_a_later_start_changes_nothing() -> None:
    replica, log = following(), Log([1, 1])
    assert replica.decide(replica.begin(log), Fetched(-1, -1, is_out_of_range=True), log) is None


def test_the_high_watermark_follows_the_leader_as_far_as_the_log_reaches() -> None:
    assert offsets_after(Fetched(9, 0), Log([1, 1])) == (2, 0)
    assert offsets_after(Fetched(1, 0), Log([1, 1])) == (1, 0)


def test_the_high_watermark_never_falls() -> None:
    """A new leader may know of less than its followers."""
    assert offsets_after(Fetched(1, 0), Log([1, 1, 1], high_watermark=3)) == (3, 0)


def test_the_log_start_offset_follows_the_leader_below_the_high_watermark() -> None:
    assert offsets_after(Fetched(3, 2), Log([1, 1, 1])) == (3, 2)
    assert offsets_after(Fetched(1, 2), Log([1, 1, 1])) == (1, 1)
    assert offsets_after(Fetched(5, 1), Log([1], log_start_offset=4)) == (5, 4)
