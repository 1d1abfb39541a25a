"""A simulation run of a group with leases: members join, leave, stall and are killed, and the store is slow or silent.

Shards split and merge meanwhile. One seed determines the run, and all time is virtual, so a failed run can be repeated.
"""

from __future__ import annotations

import heapq
import random
import traceback
from collections import Counter
from typing import Any

from headrace.core.lease.actions import UNKNOWN, ListShards, Outcome, Request
from headrace.core.lease.lease import LeaseKey
from headrace.core.lease.names import named
from tests.simulation.leases.checker import LeaseChecker, ViolationError
from tests.simulation.leases.knobs import draw
from tests.simulation.leases.process import Process
from tests.simulation.leases.store import Rows
from tests.simulation.leases.stream import Stream

PEACE_MS = 400_000
"""The longest time from the last fault until all records are processed, in milliseconds."""
BALANCE_MS = 250_000
"""The longest time from the last fault until the shards are divided evenly, in milliseconds."""


class LeaseSimulation:
    """One simulation run. `run` raises if an invariant is violated."""

    def __init__(self, seed: int, *, trace: bool = False) -> None:
        self.knobs = draw(seed)
        self.chance = random.Random(seed + 1)
        self.now_ms = 1_700_000_000_000
        self.lines: list[str] = []
        self._is_traced = trace
        self.counts: Counter[str] = Counter()
        self._events: list[tuple[int, int, Any, tuple[Any, ...]]] = []
        self._number = 0
        is_old = self.chance.random() < 0.5
        self.streams = {
            f"s{number}@1": Stream(f"s{number}@1", self.knobs.shards, is_old=is_old)
            for number in range(self.knobs.streams)
        }
        self.checker = LeaseChecker(self.streams, self.counts, self.log)
        self.rows = Rows(self.checker)
        self.checker.rows = self.rows.leases
        self.processes: list[Process] = []
        self._names = 0
        self._trouble_until_ms = self.now_ms + self.knobs.busy_ms
        self._throttled_until_ms = 0
        self._stuck: tuple[str, int] = ("", 0)

    # The environment

    def at(self, at_ms: int, call: Any, *arguments: Any) -> None:
        """Schedule a call at a time."""
        self._number += 1
        heapq.heappush(self._events, (at_ms, self._number, call, arguments))

    def log(self, line: str) -> None:
        """Append a line to the trace."""
        if self._is_traced:
            self.lines.append(f"{self.now_ms % 10_000_000:>8} {line}")

    @property
    def is_peaceful(self) -> bool:
        return self.now_ms >= self._trouble_until_ms

    def is_stuck(self, shard: str) -> bool:
        """Return whether fetches of a shard fail now."""
        return self._stuck[0] == shard and self.now_ms < self._stuck[1]

    # The network

    def send(self, process: Process, request: Request) -> None:
        """Deliver a request to the store, and the response to the process. Either may be lost or late."""
        knobs, chance = self.knobs, self.chance
        sent = (process.now_ms, process.wall_ms)
        there_ms = chance.randint(1, 30)
        timeout_ms = process.world_ms(knobs.settings.call_timeout_ms)
        fate = 1.0 if self.is_peaceful else chance.random()
        if not self.is_peaceful and chance.random() < knobs.stalls:
            self._stall(process)
        if self.now_ms < max(self._throttled_until_ms, process.cut_until_ms):
            process.later(there_ms, process.replied, request, sent, UNKNOWN)
            return
        if fate < knobs.lost_requests:
            process.later(timeout_ms, process.replied, request, sent, UNKNOWN)
            return
        fate -= knobs.lost_requests
        if fate < knobs.late:
            process.later(timeout_ms, process.replied, request, sent, UNKNOWN)
            late_ms = timeout_ms + chance.randint(0, 60_000)
            self.at(self.now_ms + late_ms, self._haunt, process, request)
            return
        fate -= knobs.late
        if fate < knobs.twice:
            self.at(self.now_ms + chance.randint(100, 60_000), self._haunt, process, request)
        is_lost = 0 <= fate - knobs.twice < knobs.lost_replies
        if is_lost:
            process.later(timeout_ms, process.replied, request, sent, UNKNOWN)
        if not knobs.is_clean and chance.random() < 0.05:
            there_ms = chance.randint(30, knobs.settings.call_timeout_ms // 2)
        self.at(self.now_ms + there_ms, self._arrive, process, request, None if is_lost else sent)

    def _arrive(self, process: Process, request: Request, sent: tuple[int, int] | None) -> None:
        outcome = self._answer(process, request)
        self.log(f"{process.name} {request} -> {outcome if not isinstance(outcome, list) else ''}")
        if sent is not None:
            back_ms = self.chance.randint(1, 30)
            process.later(back_ms, process.replied, request, sent, outcome)

    def _answer(self, process: Process, request: Request) -> Outcome:
        if isinstance(request, ListShards):
            return self.streams[request.stream].list_shards()
        self.counts["requests"] += 1
        return self.rows.apply(request, process.name, is_ghost=False)

    def _haunt(self, process: Process, request: Request) -> None:
        if not isinstance(request, ListShards):
            self.log(f"ghost of {process.name} {request}")
            self.counts["late requests"] += 1
            self.rows.apply(request, process.name, is_ghost=True)

    # Events

    def run(self) -> None:
        """Run all events that the seed determines."""
        for _ in range(self.knobs.members):
            self._join()
        self._plan()
        while not self.is_peaceful or not self._is_over():
            if not self._events or self.now_ms > self._trouble_until_ms + PEACE_MS:
                raise ViolationError(f"the run does not end: {self.checker.missing()}")
            self._happen()
        self.counts["simulations"] += 1
        self._check_balance()
        for process in self._living:
            process.close()
        self._run_until(self.now_ms + 60_000)
        owned = [row for row in self.rows.leases.values() if row.owner is not None]
        if self._living or (owned and self.knobs.is_clean):
            raise ViolationError(f"after all members have left, leases have owners: {owned}")

    def _is_over(self) -> bool:
        return self._number % 16 == 0 and self.checker.is_over()

    def _run_until(self, at_ms: int) -> None:
        while self._events and self._events[0][0] <= at_ms:
            self._happen()

    def _happen(self) -> None:
        self.now_ms, _, call, arguments = heapq.heappop(self._events)
        call(*arguments)

    def _plan(self) -> None:
        knobs = self.knobs
        plan = [
            *[self._join] * knobs.joins,
            *[self._leave] * knobs.leaves,
            *[self._kill] * knobs.kills,
            *[self._pause] * knobs.pauses,
            *[self._reshard] * knobs.reshards,
            *[self._throttle] * knobs.throttled,
            *[self._cut] * knobs.cuts,
            *([self._trim] * 6 if knobs.trims else []),
            *([self._stick] if knobs.settings.stalled_ms and not knobs.is_clean else []),
        ]
        end_ms = self._trouble_until_ms
        for call in plan:
            self.at(self.chance.randint(self.now_ms, end_ms - 1), call)
        for _ in range(self.chance.randint(5, 50)):
            self.at(self.chance.randint(self.now_ms - 1, end_ms), self._put)
        self.at(end_ms, self._calm)

    @property
    def _living(self) -> list[Process]:
        return [process for process in self.processes if process.is_alive]

    def _join(self) -> None:
        self._names += 1
        has_bound = self.knobs.has_bounds and not self.is_peaceful and self._names % 2 == 0
        name = named("", f"m{self._names}", self.chance.randint(1, 3) if has_bound else None)
        self.log(f"{name} joins")
        self.processes.append(Process(self, name))

    def _leave(self) -> None:
        staying = [process for process in self._living if not process.is_leaving]
        if len(staying) > 1:
            process = self.chance.choice(staying)
            self.log(f"{process.name} leaves")
            self.counts["leaves"] += 1
            process.is_leaving = True
            process.later(0, process.close)

    def _kill(self) -> None:
        process = self.chance.choice(self._living) if self._living else None
        if process is not None:
            self.log(f"{process.name} is killed")
            self.counts["kills"] += 1
            process.is_alive = False
            if not self._living:
                self._join()

    def _pause(self) -> None:
        if self._living:
            self._stall(self.chance.choice(self._living))

    def _stall(self, process: Process) -> None:
        for_ms = self.chance.randint(1000, 2 * self.knobs.settings.duration_ms)
        self.log(f"{process.name} pauses for {for_ms}")
        self.counts["pauses"] += 1
        process.paused_until_ms = self.now_ms + for_ms

    def _cut(self) -> None:
        if self._living:
            process = self.chance.choice(self._living)
            for_ms = self.chance.randint(1000, 2 * self.knobs.settings.duration_ms)
            self.log(f"{process.name} is cut off for {for_ms}")
            self.counts["cuts"] += 1
            process.cut_until_ms = self.now_ms + for_ms

    def _reshard(self) -> None:
        told = self.chance.choice(list(self.streams.values())).reshard(self.chance)
        self.counts[told.split()[0]] += 1
        self.log(told)

    def _throttle(self) -> None:
        self.counts["the store is throttled"] += 1
        longest_ms = self.knobs.settings.duration_ms * 3 // 2
        self._throttled_until_ms = self.now_ms + self.chance.randint(1000, longest_ms)

    def _stick(self) -> None:
        stream = self.chance.choice(list(self.streams.values()))
        shard = self.chance.choice(stream.open)
        self._stuck = (shard.shard, self.now_ms + self.chance.randint(10_000, 80_000))

    def _trim(self) -> None:
        """Remove the oldest finished shard, whose records are older than the retention."""
        for stream in self.streams.values():
            for name, shard in stream.shards.items():
                row = self.rows.leases.get(LeaseKey("g", stream.name, name))
                is_oldest = shard.parents & stream.shards.keys() <= stream.gone
                if name not in stream.gone and is_oldest and row and row.checkpoint.is_end:
                    stream.gone.add(name)
                    self.counts["shards gone"] += 1
                    return

    def _put(self) -> None:
        stream = self.chance.choice(list(self.streams.values()))
        stream.put(self.now_ms, self.chance, self.chance.randint(1, 15))

    def _calm(self) -> None:
        self.log("peace")
        self._throttled_until_ms = 0
        for process in self._living:
            process.cut_until_ms = 0
        self._stuck = ("", 0)
        if all(process.is_leaving or process.most for process in self._living):
            self._join()
        for stream in self.streams.values():
            stream.put(self.now_ms, self.chance, 10)

    # The end

    def _check_balance(self) -> None:
        self._run_until(self._trouble_until_ms + BALANCE_MS)
        counts, shards = [0], 0
        for _ in range(12):  # a lease may be moving because of its load
            counts = [len(list(process.core.held)) for process in self._living]
            shards = sum(len(stream.open) for stream in self.streams.values())
            self.log(f"{shards} shards, held: {counts}")
            is_even = self.knobs.has_rates or self._is_even()
            if sum(counts) == shards and is_even:
                return
            self._run_until(self.now_ms + 5_000)
        raise ViolationError(f"{shards} shards are not divided evenly: {counts}")

    def _is_even(self) -> bool:
        members = [(len(list(each.core.held)), each.most or 1000) for each in self._living]
        most = max(count for count, _ in members)
        return all(count >= min(bound, most - 1) for count, bound in members)


def run_seed(seed: int) -> tuple[int, str, Counter[str]]:
    """Do one run; return the seed, the violation ("" for none), and counts of events."""
    simulation = LeaseSimulation(seed)
    try:
        simulation.run()
    except Exception as error:  # noqa: BLE001 - any error is a result of the run
        return seed, "".join(traceback.format_exception_only(error)).strip(), simulation.counts
    return seed, "", simulation.counts
