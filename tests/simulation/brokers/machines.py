"""The brokers of a run, as the network and the processes of `tests.simulation` see them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from headrace.broker.broker import Broker
from tests.fixtures.broker_harness import START_MS
from tests.fixtures.cluster import SimulatedCluster
from tests.fixtures.cluster_broker import ClusterBroker
from tests.simulation.machine import TRACE_KEPT


class Schedule:
    """The future events of a cluster."""

    def __init__(self, cluster: SimulatedCluster) -> None:
        self._cluster = cluster

    def at(self, when_ms: int, what: Callable[[], object]) -> None:
        self._cluster.timeline.at(max(when_ms, self._cluster.now_ms), what)

    def run_until(self, end_ms: int) -> None:
        self._cluster.advance(max(0, end_ms - self._cluster.now_ms))


class BrokerHost:
    """One broker, for the connections of processes."""

    def __init__(self, broker: ClusterBroker) -> None:
        self._broker = broker

    @property
    def broker(self) -> Broker | None:
        return self._broker.broker if self._broker.is_running else None

    @property
    def life(self) -> int:
        return self._broker.life

    def step(self, what: Callable[[], object]) -> None:
        self._broker.run(what)


class Lines(list[Any]):
    """The log lines of a broker, which are also written to the trace."""

    def __init__(self, write: Callable[[str], None], broker_id: int) -> None:
        super().__init__()
        self._write = write
        self._broker_id = broker_id

    def append(self, line: Any, /) -> None:
        super().append(line)
        level, event, fields = line
        self._write(f"broker {self._broker_id}: {level} {event} {fields}")


class Machines:
    """The machines of the brokers, the schedule of all events, and the trace."""

    def __init__(self, cluster: SimulatedCluster) -> None:
        self.cluster = cluster
        self.schedule = Schedule(cluster)
        self.lines: deque[str] = deque(maxlen=TRACE_KEPT)
        self.tracing = False
        self.hosts: dict[tuple[str, int], BrokerHost] = {}
        """The brokers by their addresses."""
        self.by_id: dict[int, BrokerHost] = {}
        for broker_id, broker in cluster.brokers.items():
            host = self.hosts[broker.address] = self.by_id[broker_id] = BrokerHost(broker)
            assert host.broker is not None
            broker.journal.lines = Lines(self.trace, broker_id)

    @property
    def now_ms(self) -> int:
        return self.cluster.now_ms

    def trace(self, line: str) -> None:
        if self.tracing:
            self.lines.append(f"{self.now_ms - START_MS:6} {line}")
