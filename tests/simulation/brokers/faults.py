"""The faults of brokers, their disks, their links and their sessions."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from functools import partial

from headrace.metadata_stores.sessions import SimulatedMetadataStore
from headrace.ports import Unavailable
from tests.fixtures.cluster_broker import ClusterBroker
from tests.fixtures.cluster_links import Fate
from tests.fixtures.crash_files import PowerCut
from tests.simulation.brokers.knobs import (
    BROKER_PAUSES_MS,
    DOWN_MS,
    OUTAGES_MS,
    ClusterKnobs,
)
from tests.simulation.brokers.machines import Machines

LOSSES: dict[Fate, float] = {
    "request lost": 0.05,
    "response lost": 0.05,
    "doubled": 0.1,
    "late": 0.1,
}
"""The fates of requests between two brokers while the link between them is bad."""
AGAIN_MS = 200
"""The time after which a start is tried again that failed because the store was away, in milliseconds."""


class BrokerFaults:
    """The faults of the brokers of a run."""

    def __init__(
        self,
        machines: Machines,
        knobs: ClusterKnobs,
        chance: random.Random,
        counts: Counter[str],
    ) -> None:
        """Begin without faults.

        Args:
            machines: The machines of the brokers.
            knobs: The settings of the run.
            chance: Determines the faults.
            counts: Counts the faults.
        """
        self._machines = machines
        self._cluster = machines.cluster
        self._knobs = knobs
        self._chance = chance
        self._counts = counts
        self._starting: set[int] = set()
        self.all: dict[str, Callable[[], None]] = {
            "kill a broker": partial(self._kill, power=False),
            "cut the power of a broker": partial(self._kill, power=True),
            "stop a broker": self._stop,
            "kill all brokers": self._kill_all,
            "pause a broker": self._pause,
            "cut a link": self._cut_link,
            "lose messages": self._lose_messages,
            "cut the store": self._cut_store,
        }

    def fell(self, broker_id: int) -> None:
        """Start a broker again, some time after its end."""
        self._trace(f"broker {broker_id}: has ended")
        down_ms = 0 if self._knobs.calm else self._chance.choice(DOWN_MS)
        self._later(down_ms, partial(self._start, broker_id))

    def calm(self) -> None:
        """End the faults of links, disks and sessions."""
        self._cluster.heal()
        for broker in self._cluster.brokers.values():
            broker.sync_ms = 1
            broker.files.fuse = None  # type: ignore[attr-defined]  # a disk that can lose power

    def _start(self, broker_id: int) -> None:
        broker = self._cluster.brokers[broker_id]
        if broker.is_running or broker_id in self._starting:
            return
        self._trace(f"broker {broker_id}: starts")
        self._starting.add(broker_id)
        try:
            broker.start()
        except Unavailable:
            broker.metadata.close()
            self._later(AGAIN_MS, partial(self._start, broker_id))
        finally:
            self._starting.discard(broker_id)

    # Processes

    def _kill(self, *, power: bool) -> None:
        broker = self._any_running()
        if broker is None:
            return
        what = "power cuts" if power else "kills"
        self._counts[what] += 1
        self._trace(f"broker {broker.broker_id}: {what}")
        if power and self._chance.random() < 0.5:
            files = broker.files
            files.fuse = files.operations + self._chance.randint(1, 12)  # type: ignore[attr-defined]  # see `calm`
        else:
            broker.kill(power=power, ends_session=self._chance.random() < 0.3)

    def _stop(self) -> None:
        broker = self._any_running()
        if broker is None or broker.is_paused or broker.is_syncing or broker.metadata.down:
            return
        self._counts["stops"] += 1
        self._trace(f"broker {broker.broker_id}: stops")
        try:
            broker.broker.close(self._cluster.now_ms)
        except PowerCut:
            broker.kill(power=True)
        else:
            broker.kill(ends_session=True)

    def _kill_all(self) -> None:
        self._counts["ends of all brokers"] += 1
        for broker in list(self._cluster.brokers.values()):
            if broker.is_running:
                broker.kill(
                    power=self._knobs.durability == "fsync" and self._chance.random() < 0.5,
                    ends_session=self._chance.random() < 0.3,
                )

    def _pause(self) -> None:
        broker = self._any_running()
        if broker is None or broker.is_paused:
            return
        self._counts["pauses of brokers"] += 1
        self._trace(f"broker {broker.broker_id}: is paused")
        broker.pause()
        life = broker.life

        def resume() -> None:
            if broker.life == life and broker.is_paused:
                self._trace(f"broker {broker.broker_id}: continues")
                broker.resume()

        self._later(self._chance.choice(BROKER_PAUSES_MS), resume)

    # Links and sessions

    def _cut_link(self) -> None:
        source, target = self._chance.sample(sorted(self._cluster.brokers), 2)
        both_ways = self._chance.random() < 0.5
        self._counts["cut links"] += 1
        self._trace(f"link {source} to {target} is cut, both ways: {both_ways}")
        self._cluster.cut(source, target, both_ways=both_ways)

        def heal() -> None:
            for pair in ((source, target), (target, source)):
                self._cluster.links.way(*pair).is_cut = False

        self._later(self._chance.choice(OUTAGES_MS), heal)

    def _lose_messages(self) -> None:
        pair = self._chance.sample(sorted(self._cluster.brokers), 2)
        way = self._cluster.links.way(*pair)
        self._counts["bad links"] += 1
        way.chances = dict(LOSSES)
        self._later(self._chance.choice(OUTAGES_MS), way.chances.clear)

    def _cut_store(self) -> None:
        broker = self._any_running()
        if broker is None:
            return
        self._counts["cuts from the store"] += 1
        self._trace(f"broker {broker.broker_id}: is cut from the store")
        store: SimulatedMetadataStore = broker.metadata
        life = broker.life
        store.down = True

        def heal() -> None:
            if broker.life == life:
                store.down = False

        self._later(self._chance.choice(OUTAGES_MS), heal)

    def _any_running(self) -> ClusterBroker | None:
        running = [broker for broker in self._cluster.brokers.values() if broker.is_running]
        return self._chance.choice(running) if running else None

    def _later(self, delay_ms: int, what: Callable[[], object]) -> None:
        self._machines.schedule.at(self._cluster.now_ms + delay_ms, what)

    def _trace(self, line: str) -> None:
        self._machines.trace(line)
