"""Rates and pauses, with a manual clock."""

from __future__ import annotations

import pytest

from headrace.core.quota import SampledRate, TrackedRates, Windows

WINDOWS = Windows(11, 1000)
START_MS = 1_700_000_000_000


def test_the_first_second_is_spread_over_all_windows_but_one() -> None:
    rate = SampledRate(WINDOWS)
    rate.record(10_000, START_MS)
    assert rate.per_second(START_MS) == 1000
    assert rate.pause_ms(1000, START_MS) == 0
    rate.record(1000, START_MS + 500)
    # 11,000 in 10.5 seconds; down to 1,000 a second it takes another half second.
    assert rate.pause_ms(1000, START_MS + 500) == 500


def test_amounts_older_than_all_windows_do_not_count() -> None:
    rate = SampledRate(WINDOWS)
    rate.record(5000, START_MS)
    assert rate.per_second(START_MS + 10_999) > 0
    assert rate.per_second(START_MS + 11_000) == 0
    assert rate.pause_ms(1, START_MS + 11_000) == 0


def test_after_the_pause_the_rate_is_the_quota() -> None:
    rate = SampledRate(WINDOWS)
    rate.record(20_000, START_MS)
    assert rate.pause_ms(2500, START_MS) == 0
    rate.record(10_000, START_MS)
    pause_ms = rate.pause_ms(2800, START_MS)
    assert rate.per_second(START_MS + pause_ms) == pytest.approx(2800, rel=0.01)


@pytest.mark.parametrize("quota", [1000, 50_000, 3_000_000])
@pytest.mark.parametrize("step", [0.01, 0.3, 2.0])
def test_a_client_that_pauses_as_requested_reaches_its_quota(quota: int, step: float) -> None:
    """Simulate a client that sends amounts for `step` seconds as fast as possible, and pauses as the broker asks."""
    rate = SampledRate(WINDOWS)
    now_ms, sent = START_MS, 0.0
    measured_from: tuple[int, float] | None = None
    while now_ms < START_MS + 120_000:
        rate.record(quota * step, now_ms)
        sent += quota * step
        now_ms += 1 + rate.pause_ms(quota, now_ms)
        if measured_from is None and now_ms >= START_MS + 20_000:
            measured_from = (now_ms, sent)
    assert measured_from is not None
    seconds = (now_ms - measured_from[0]) / 1000
    assert (sent - measured_from[1]) / seconds == pytest.approx(quota, rel=0.1)


def test_a_negative_value_lowers_a_rate() -> None:
    rate = SampledRate(WINDOWS)
    rate.record(500, START_MS)
    rate.record(9_000_000, START_MS)
    rate.record(-9_000_000, START_MS)
    assert rate.per_second(START_MS) == 50


def test_a_clock_that_is_set_back_changes_nothing() -> None:
    rate = SampledRate(WINDOWS)
    rate.record(20_000, START_MS)
    rate.record(1, START_MS - 3_600_000)
    assert rate.per_second(START_MS - 3_600_000) == pytest.approx(2000.1)
    assert rate.per_second(START_MS + 11_000) == 0


def test_a_pause_fits_into_its_field() -> None:
    rate = SampledRate(Windows(2, 1_000_000))
    rate.record(1e15, START_MS)
    assert rate.pause_ms(0.001, START_MS) == 2**31 - 1


def test_a_rate_can_have_a_single_window() -> None:
    rate = SampledRate(Windows(1, 1000))
    rate.record(3000, START_MS)
    assert rate.pause_ms(1000, START_MS) == 2000


def test_so_many_rates_are_kept_and_the_latest_stay() -> None:
    rates: TrackedRates[str] = TrackedRates(lambda: SampledRate(WINDOWS), 3)
    for name in "abc":
        rates.of(name).record(1000, START_MS)
    rates.of("a")
    rates.of("d")
    assert len(rates) == 3
    assert rates.of("a").per_second(START_MS) == 100
    assert rates.of("b").per_second(START_MS) == 0
