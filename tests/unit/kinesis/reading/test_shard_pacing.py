"""The times and sizes of reads, checked against the limits of the fake with a simulated clock."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.errors import ConfigError
from headrace.kinesis.reading.pacing import Pacing
from headrace.kinesis.reading.settings import ReadSettings
from headrace.testing.kinesis.limits import Limits, ReadBudget
from tests.effort import examples


def shared_reading(
    groups: int, record_bytes: int, seed: int, seconds: int, *, since_ms: int = 0
) -> tuple[int, int, int]:
    """Let several groups read a shard that is far behind; return refused calls, all calls, and bytes."""
    limits, shard, random = Limits(), ReadBudget(), Random(seed)
    pacings = [Pacing(ReadSettings(groups_sharing=groups), random.random) for _ in range(groups)]
    refused = made = read_bytes = now_ms = 0
    while now_ms < seconds * 1000:
        waits = [pacing.wait_ms(now_ms) for pacing in pacings]
        now_ms += min(waits)
        pacing = pacings[waits.index(min(waits))]
        limit = pacing.limit(None)
        pacing.sent(now_ms, limit)
        now_ms += random.randrange(3)  # the way to Kinesis
        made += 1
        if not shard.admit(now_ms, limits):
            refused += now_ms >= since_ms
            pacing.failed(now_ms)
            continue
        records = min(limit, limits.get_bytes // record_bytes)
        shard.spend(now_ms, records * record_bytes, limits)
        read_bytes += records * record_bytes
        pacing.replied(now_ms + random.randrange(3), records, records * record_bytes, 60_000)
    return refused, made, read_bytes


@settings(max_examples=examples(30))
@given(st.integers(1, 5), st.sampled_from([10, 200, 1_000, 1_500]), st.integers(0, 99))
def test_groups_that_set_groups_sharing_are_never_throttled(
    groups: int, record_bytes: int, seed: int
) -> None:
    """The first seconds do not count: each group requests more and more because records are smaller than assumed."""
    refused, made, read_bytes = shared_reading(groups, record_bytes, seed, 10, since_ms=5_000)
    assert refused == 0
    assert made <= 10 * 5 + groups
    if record_bytes >= 1_000:
        assert read_bytes > 10 * (2 << 20) * 0.85


@settings(max_examples=examples(20))
@given(st.integers(10_000, 1_000_000), st.integers(0, 99))
def test_one_group_is_never_throttled_with_records_of_any_size(
    record_bytes: int, seed: int
) -> None:
    refused, _, read_bytes = shared_reading(1, record_bytes, seed, 60)
    assert refused == 0
    assert read_bytes > 60 * (2 << 20) * 0.75


def test_only_a_shard_without_new_records_waits_for_poll_ms() -> None:
    pacing = Pacing(ReadSettings(poll_ms=1_500, max_records=100), lambda: 0.5)
    assert pacing.wait_ms(0) == 0
    for records, behind_ms, expected_ms in [
        (0, 0, 1_500),
        (0, 5_000, 206),  # no records here, but later ones exist
        (7, 0, 1_500),
        (
            100,
            0,
            206,
        ),  # as many as requested: there may be more, whatever the server reports
        (0, None, 1_500),
    ]:
        pacing.sent(10_000, 100)
        pacing.replied(10_020, records, records * 10, behind_ms)
        assert pacing.wait_ms(10_020) == expected_ms - 20


def test_pauses_after_failures_grow_until_a_success() -> None:
    pacing = Pacing(ReadSettings(), lambda: 1.0)
    waits = []
    for _ in range(8):
        pacing.sent(0, 1)
        pacing.failed(0)
        waits.append(pacing.wait_ms(0))
    assert waits == [206, 400, 800, 1_600, 3_200, 6_400, 10_000, 10_000]
    pacing.replied(0, 0, 0, 0)
    pacing.sent(0, 1)
    pacing.failed(0)
    assert pacing.wait_ms(0) == 206


def test_the_mean_size_rises_at_once_and_falls_slowly() -> None:
    pacing = Pacing(ReadSettings(), lambda: 0.5)
    first = pacing.limit(None)
    pacing.replied(0, 2, 2_000_000, 0)
    assert pacing.limit(None) == 2
    assert pacing.limit(10) == 1
    for _ in range(30):
        pacing.replied(0, 1_000, 100_000, 0)
    assert first < pacing.limit(None) <= 10_000
    assert pacing.limit(35_600) <= 100


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("poll_ms", 199),
        ("poll_ms", 5_001),
        ("groups_sharing", 0),
        ("max_records", 10_001),
        ("shard_bytes", 0),
    ],
)
def test_errors_of_settings_name_their_limits(setting: str, value: int) -> None:
    with pytest.raises(ConfigError, match=rf"{setting}={value} is not allowed: use \d+ to \d+"):
        ReadSettings(**{setting: value})  # type: ignore[arg-type] # one of them is a bool
