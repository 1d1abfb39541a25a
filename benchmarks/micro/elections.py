"""Measure the CPU time of each broker of a cluster of three when the leader of many partitions dies.

    python -m benchmarks.micro.elections [PARTITIONS...]

The brokers are simulated, without network and disks, so the time is that of the controller and of the images. It is
counted until the new leader serves all partitions. The last column is a minute in which nothing happens.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Callable
from typing import Final

from headrace.core.cluster.records import CONTROLLER_KEY, ControllerRecord, decode
from tests.fixtures.cluster import SimulatedCluster
from tests.fixtures.cluster_broker import ClusterBroker

PARTITIONS: Final = (1_000, 10_000)
_A_TOPIC: Final = 1_000
_IDLE_MS: Final = 60_000


class _Measured:
    """The CPU time of each broker in milliseconds, while this object is in use."""

    def __init__(self, cluster: SimulatedCluster) -> None:
        self.spent: Counter[int] = Counter()
        for broker in cluster.brokers.values():
            self._measure(broker)

    def _measure(self, broker: ClusterBroker) -> None:
        run, is_inside = broker.run, False

        def measured(what: Callable[[], object]) -> None:
            nonlocal is_inside
            if is_inside:
                run(what)
                return
            is_inside, began_ns = True, time.process_time_ns()
            run(what)
            is_inside = False
            self.spent[broker.broker_id] += time.process_time_ns() - began_ns

        broker.run = measured  # type: ignore[method-assign]  # the simulation has no hook for it

    def take(self) -> Counter[int]:
        """Return the times in milliseconds, and begin again."""
        spent = Counter({number: ns // 1_000_000 for number, ns in self.spent.items()})
        self.spent.clear()
        return spent


def measure(partitions: int) -> str:
    """Return a line with the times."""
    cluster = SimulatedCluster(3, in_memory=True, delay_ms=0, store_delay_ms=0)
    cluster.run_until(lambda: cluster.content.get(CONTROLLER_KEY))
    entry = cluster.content.get(CONTROLLER_KEY)
    assert entry is not None
    controller = decode(entry, ControllerRecord).broker
    dies, leads = (number for number in cluster.brokers if number != controller)
    names = [f"t{number}" for number in range(partitions // _A_TOPIC)]
    for name in names:
        cluster.create_topic(name, replicas=[(dies, leads, controller)] * _A_TOPIC)
    cluster.advance(3_000)
    measured = _Measured(cluster)
    cluster.kill(dies, ends_session=True)
    found = cluster.brokers[leads].broker.services.partitions
    cluster.run_until(lambda: all(len(found.led(name)) == _A_TOPIC for name in names[::-1]))
    elected = measured.take()
    cluster.advance(3_000)
    measured.take()
    cluster.advance(_IDLE_MS)
    idle = measured.take()
    return f"{partitions:10,} {elected[controller]:13} ms {elected[leads]:13} ms {idle[controller]:13} ms"


def main() -> None:
    """Print a table of the times."""
    print(f"{'partitions':>10} {'controller':>16} {'new leader':>16} {'idle controller':>16}")
    for partitions in map(int, sys.argv[1:]) if len(sys.argv) > 1 else PARTITIONS:
        print(measure(partitions), flush=True)


if __name__ == "__main__":
    main()
