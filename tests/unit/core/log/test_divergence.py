"""A follower truncates its log to the last common record after an election (KIP-101, KIP-279, KIP-595).

The follower fetches from its log end offset and names the epoch of its last record. The leader answers with the end
offset of the largest epoch up to this one. If that end offset is lower, or the epoch another one, the logs have
diverged. The follower truncates to the lower of this end offset and its own end offset of that epoch. Then it fetches
again.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

import pytest

from headrace.core.log import PartitionLog
from headrace.core.log.index.leader_epochs import LeaderEpochCache
from headrace.storage.memory_files import MemoryFileSystem
from tests.fixtures.logs import NOW_MS, append, batch_of, open_log, raw_batches


@dataclass
class Case:
    """Two logs as the leader epochs of their records, and the offset to which the follower truncates."""

    name: str
    leader: list[int]
    follower: list[int]
    truncation: int
    rounds: int = 1
    """The number of fetches to which the leader answers with a diverging epoch."""


CASES = [
    Case("A: the follower is behind in the same epoch", [1, 1, 1, 1], [1, 1], 2, 0),
    Case("B: the follower is behind, and the leader has a newer epoch", [1, 1, 2, 2], [1, 1], 2, 0),
    Case("C: the follower is ahead in the same epoch", [1, 1], [1, 1, 1, 1], 2),
    Case("D: the follower is ahead with an epoch of its own", [1, 1], [1, 1, 2, 2], 2),
    Case("E: both have an epoch of their own", [1, 1, 3, 3], [1, 1, 2, 2], 2),
    Case("F: the leader has more of the last common epoch", [1, 1], [1, 2, 2], 1),
    Case("G: the logs have no epoch in common", [1, 3], [2, 2], 0),
    Case("KIP-279: two elections in short order", [1, 1, 3, 3, 3], [1, 1, 2, 4, 4], 2, 2),
    Case("several rounds: the epochs alternate", [1, 2, 2, 4, 4], [1, 1, 3, 3, 5], 1, 3),
]


def log_of(epochs: list[int], newest: int) -> PartitionLog:
    log = open_log(MemoryFileSystem(), high_watermark=0)
    for offset, epoch in enumerate(epochs):
        append(
            log, batch_of(tag=f"{epoch}/{offset}", timestamp=NOW_MS + offset), leader_epoch=epoch
        )
    log.become_leader(newest)
    return log


def reconcile(leader: PartitionLog, follower: PartitionLog) -> int:
    """Truncate the follower until the leader finds no divergence. Return the number of truncations."""
    rounds = 0
    while (offset := follower.log_end_offset) > 0:
        last_epoch = follower.epoch_at(offset - 1)
        epoch, end_offset = leader.end_offset_for_epoch(last_epoch)
        if (epoch, min(end_offset, offset)) == (last_epoch, offset):
            break
        rounds += 1
        _, own_end = follower.end_offset_for_epoch(epoch)
        follower.truncate_to(min(end_offset, own_end), now_ms=NOW_MS)
        assert follower.log_end_offset < offset, "a truncation without progress"
    return rounds


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_follower_truncates_to_the_last_common_record(case: Case) -> None:
    newest = max(*case.leader, *case.follower) + 1
    leader = log_of(case.leader, newest)
    follower = log_of(case.follower, max(case.follower))
    assert reconcile(leader, follower) == case.rounds
    assert follower.log_end_offset == case.truncation
    of_leader = raw_batches(leader)
    assert raw_batches(follower) == {
        offset: batch for offset, batch in of_leader.items() if offset < case.truncation
    }
    for offset in range(case.truncation, leader.log_end_offset):
        follower.append_replicated(of_leader[offset], now_ms=NOW_MS)
    assert raw_batches(follower) == of_leader
    assert follower.epochs.entries == leader.epochs.entries[: len(follower.epochs.entries)]


@pytest.mark.parametrize("seed", range(300))
def test_elections_at_random_leave_no_diverged_log(seed: int) -> None:
    """Any replica may become the leader, with any log. The log of a replica is the list of its records' epochs."""
    chance = random.Random(seed)
    logs: list[list[int]] = [[] for _ in range(3)]
    for epoch in range(1, 25):
        leader = chance.randrange(3)
        led = logs[leader]
        start = len(led)
        led += [epoch] * chance.randint(0, 3)
        for number, follower in enumerate(logs):
            if number != leader and chance.random() < 0.6:
                common = next(
                    (at for at, (a, b) in enumerate(zip(follower, led, strict=False)) if a != b),
                    min(len(follower), len(led)),
                )
                assert truncated(follower, led, (epoch, start)) == common
                follower[common:] = led[common : chance.randint(common, len(led))]


def truncated(follower: list[int], leader: list[int], newest: tuple[int, int]) -> int:
    """Return the offset to which a follower truncates, by the epoch caches of both logs."""
    of_leader = cache_of(leader)
    of_leader.assign(*newest)
    end = len(follower)
    while end:
        own = cache_of(follower[:end])
        epoch, end_offset = of_leader.end_offset_for(own.latest, len(leader))
        if epoch == own.latest and end_offset >= end:
            return end
        end = min(end_offset, own.end_offset_for(epoch, end)[1])
    return 0


def cache_of(epochs: list[int]) -> LeaderEpochCache:
    cache = LeaderEpochCache()
    for offset, epoch in enumerate(epochs):
        cache.assign(epoch, offset)
    return cache
