"""Followers whose logs have diverged from the log of their leader in any way: they become equal, and lose nothing."""

from __future__ import annotations

import random
from dataclasses import dataclass

import pytest

from headrace.core.replica.divergence import find_divergence
from headrace.core.replica.following import (
    Append,
    BeginAt,
    Fetched,
    Following,
    Truncate,
    offsets_after,
)

Record = tuple[int, int]
"""The leader epoch in which a record was appended, and a number that no other record has."""


@dataclass
class Log:
    """A log in memory. A leader has begun an epoch that may have no record yet."""

    records: list[Record]
    high_watermark: int = 0
    log_start_offset: int = 0
    began: int = -1

    @property
    def log_end_offset(self) -> int:
        return self.log_start_offset + len(self.records)

    synced_offset = log_end_offset

    @property
    def epochs(self) -> list[int]:
        return [epoch for epoch, _ in self.records]

    @property
    def leader_epoch(self) -> int:
        return max([self.began, *self.epochs[-1:]])

    def epoch_at(self, offset: int) -> int:
        return self.epochs[offset - self.log_start_offset]

    def end_offset_for_epoch(self, epoch: int) -> tuple[int, int]:
        if epoch < 0 or epoch > self.leader_epoch:
            return -1, -1
        if epoch == self.leader_epoch:
            return epoch, self.log_end_offset
        known = [each for each in self.epochs if each <= epoch]
        return (known[-1] if known else epoch), self.log_start_offset + len(known)


class History:
    """Three replicas. Each epoch has a leader with all committed records. The others copy some of its records."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.logs = [Log([]) for _ in range(3)]
        self.committed: list[Record] = []
        self.number = 0
        for epoch in range(chance.randint(1, 6)):
            self.lead(epoch)

    def lead(self, epoch: int) -> None:
        chance, size = self.chance, len(self.committed)
        leader = chance.choice(
            [each for each in self.logs if each.records[:size] == self.committed]
        )
        leader.began = epoch
        for _ in range(chance.randint(0, 3)):
            leader.records.append((epoch, self.number))
            self.number += 1
        copied = chance.sample(
            [each for each in self.logs if each is not leader], chance.randint(0, 2)
        )
        for log in copied:
            follow(log, leader, up_to=chance.randint(0, leader.log_end_offset))
        if len(copied) == 2:
            equal = min(common(log, leader) for log in copied)
            if equal > size:
                self.committed = leader.records[:equal]
                for log in (leader, *copied):
                    log.high_watermark = chance.randint(log.high_watermark, equal)
        self.leader = leader


def common(one: Log, other: Log) -> int:
    count = 0
    for mine, its in zip(one.records, other.records, strict=False):
        if mine != its:
            break
        count += 1
    return count


def follow(log: Log, leader: Log, up_to: int) -> int:
    """Let a replica follow until it has the leader's records up to an offset; return the number of fetches."""
    replica = Following(leader.leader_epoch, syncs_first=False)
    log.began = -1
    for fetches in range(1, 20):
        position = replica.begin(log)
        diverging = find_divergence(leader, position.fetch_offset, position.last_fetched_epoch)
        out = diverging is None and position.fetch_offset < leader.log_start_offset
        fetched = Fetched(
            leader.high_watermark, leader.log_start_offset, diverging, is_out_of_range=out
        )
        decision = replica.decide(position, fetched, log)
        if isinstance(decision, Truncate):
            assert decision.end_offset < log.log_end_offset, "each truncation removes something"
            del log.records[decision.end_offset - log.log_start_offset :]
        elif isinstance(decision, BeginAt):
            log.records, log.log_start_offset = [], decision.offset
            log.high_watermark = max(log.high_watermark, decision.offset)
        else:
            assert decision == Append()
            start = log.log_end_offset - leader.log_start_offset
            end = max(start, up_to - leader.log_start_offset)
            log.records += leader.records[start:end]
            log.high_watermark, log_start_offset = offsets_after(fetched, log)
            del log.records[: log_start_offset - log.log_start_offset]
            log.log_start_offset = log_start_offset
            return fetches
    raise AssertionError("the replica does not stop truncating")


@pytest.mark.parametrize("seed", range(400))
def test_a_follower_gets_the_log_of_its_leader_and_keeps_what_is_committed(seed: int) -> None:
    history = History(random.Random(seed))
    leader = history.leader
    for log in history.logs:
        if log is not leader:
            follow(log, leader, leader.log_end_offset)
            assert log.records == leader.records
    assert leader.records[: len(history.committed)] == history.committed


@pytest.mark.parametrize("seed", range(200))
def test_a_follower_begins_anew_where_its_leader_has_deleted_records(seed: int) -> None:
    chance = random.Random(seed)
    history = History(chance)
    leader = history.leader
    start = leader.high_watermark = chance.randint(0, len(history.committed))
    del leader.records[:start]
    leader.log_start_offset = start
    for log in history.logs:
        if log is not leader:
            follow(log, leader, leader.log_end_offset)
            assert (log.records, log.log_start_offset) == (leader.records, start)
