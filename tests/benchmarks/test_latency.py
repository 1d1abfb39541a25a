"""The end-to-end benchmark: a stall is charged to every record that it delays."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue
from time import monotonic_ns

import pytest

from benchmarks.macro import latency
from benchmarks.macro.latency import Window, end_to_end, percentiles

STALL_NS = 50_000_000


class Stalling:
    """Hands over the first record late, and the others as soon as it can."""

    def __init__(self, wire: SimpleQueue[bytes]) -> None:
        self.wire, self.first = wire, True

    def send(self, value: bytes) -> None:
        until = monotonic_ns() + (STALL_NS if self.first else 0)
        while monotonic_ns() < until:
            pass
        self.first = False
        self.wire.put(value)

    def finish(self) -> None:
        pass


def test_a_stall_is_charged_to_all_records_that_were_due_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(latency, "LEAD_NS", 0)
    wire: SimpleQueue[bytes] = SimpleQueue()
    with ThreadPoolExecutor(2) as pool:
        found = end_to_end(
            "",
            "",
            pool=pool,
            rate=1_000,
            seconds=0.05,  # all of it is due before the stall is over
            sender=lambda *_: Stalling(wire),
            receiver=lambda *_: iter(wire.get, None),
            during=lambda: Window(0, 1 << 62),
        )
    assert found["p99 ms"] >= STALL_NS / 1e6
    assert found["p50 ms"] >= STALL_NS / 1e6 * 0.4  # the record in the middle waited for half of it


def test_percentiles_are_of_the_slow_end() -> None:
    found = percentiles([number * 1_000_000 for number in range(1_000)])
    assert found == {"p50 ms": 500.0, "p99 ms": 990.0, "p99.9 ms": 999.0}


def test_no_record_is_an_error() -> None:
    with pytest.raises(RuntimeError, match="no record"):
        percentiles([])
