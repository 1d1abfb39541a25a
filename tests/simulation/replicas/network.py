"""The network between the brokers: messages take time, arrive late or twice, or are lost on a link that is cut."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.simulation.replicas.process import Process
    from tests.simulation.replicas.replica_simulation import ReplicaSimulation


class Network:
    """The links between all brokers."""

    def __init__(self, simulation: ReplicaSimulation) -> None:
        """Begin with links that work."""
        self._simulation = simulation
        self.cut: dict[tuple[int, int], int] = {}
        """The number of reasons for which a link is cut, by sender and receiver."""

    def send(self, sender: Process, receiver: int, deliver: Callable[[Process], object]) -> None:
        """Deliver a message to the process that the receiver has now."""
        target = self._simulation.processes.get(receiver)
        if target is not None and not target.is_dead:
            self._deliver(sender, target, lambda: deliver(target))

    def reply(self, sender: Process, receiver: Process, deliver: Callable[[], object]) -> None:
        """Deliver a response to the process that has sent the request."""
        self._deliver(sender, receiver, deliver)

    def _deliver(self, sender: Process, target: Process, deliver: Callable[[], object]) -> None:
        if self.cut.get((sender.broker_id, target.broker_id)):
            return
        simulation, knobs = self._simulation, self._simulation.knobs
        chance = simulation.chance
        times = 1
        delay_ms = chance.randint(1, knobs.delay_ms)
        if not simulation.is_calm:
            if chance.random() < knobs.lost:
                return
            if chance.random() < knobs.late:
                delay_ms = chance.randint(100, 6_000)
            if chance.random() < knobs.twice:
                times = 2
        for _ in range(times):
            at_ms = simulation.now_ms + delay_ms
            simulation.timeline.at(at_ms, lambda: target.run(deliver))
            delay_ms += chance.randint(1, 2_000) if times == 2 else 0
