"""The processes of a run, and the faults of processes and connections: pauses, deaths, broken connections, repeats."""

from __future__ import annotations

import random
from collections import Counter, deque
from functools import partial

from headrace.protocol.api_keys import ApiKey
from tests.simulation.checker import Checker
from tests.simulation.clients import Process
from tests.simulation.knobs import (
    LONG_PAUSES_MS,
    PAUSES_MS,
    REPLACEMENT_DELAYS_MS,
    STALLS_MS,
    Knobs,
)
from tests.simulation.network import Frame, Network, Wire
from tests.simulation.programs import Careless, Member, Plain, Reader

REPEATED = (
    ApiKey.PRODUCE,
    ApiKey.END_TXN,
    ApiKey.TXN_OFFSET_COMMIT,
    ApiKey.ADD_PARTITIONS_TO_TXN,
    ApiKey.ADD_OFFSETS_TO_TXN,
)
"""The requests that the fault "repeat" sends again."""


class Processes:
    """The members of the group, the producers and the readers of a run."""

    def __init__(
        self,
        network: Network,
        knobs: Knobs,
        checker: Checker,
        chance: random.Random,
        counts: Counter[str],
    ) -> None:
        """Start the processes.

        Args:
            network: The network.
            knobs: The settings of the run.
            checker: Takes the reports of the processes.
            chance: Determines the faults.
            counts: Counts the faults.
        """
        self.network = network
        self.machine = network.machine
        self.knobs = knobs
        self.checker = checker
        self.counts = counts
        self._chance = chance
        self._heard: deque[Frame] = deque(maxlen=60)
        self._lives: Counter[str] = Counter()
        self.members = [self._member(number) for number in range(knobs.members)]
        self.plain = [Plain(network, "p1", knobs, checker, f"{knobs.seed} p1")]
        self.readers = [
            Reader(network, "rc", knobs, checker, committed=True),
            Reader(network, "ru", knobs, checker, committed=False),
        ]
        self._careless = Careless(network, knobs, checker) if knobs.careless else None
        self.zombies: list[Process] = []
        """Members that were replaced while they were paused, and continue."""

    def hear(self, frame: Frame) -> None:
        """Note a request that the fault `repeat` may send again."""
        if frame.client is not None and frame.api_key in REPEATED:
            self._heard.append(frame)

    def cut(self) -> None:
        if wire := self._any_wire():
            self.counts["cuts"] += 1
            wire.break_off()

    def stall(self) -> None:
        if wire := self._any_wire():
            self.counts["stalls"] += 1
            pause_ms = self._chance.choice(STALLS_MS)
            wire.stalled_until_ms = self.machine.now_ms + pause_ms

    def _any_wire(self) -> Wire | None:
        wires = [wire for wire in self.network.wires if wire.client is not None]
        return self._chance.choice(wires) if wires else None

    def pause(self) -> None:
        process = self._chance.choice([*self.members, *self.plain, *self.readers])
        if not process.dead:
            self.counts["pauses"] += 1
            process.pause(self._chance.choice(PAUSES_MS))

    def die(self) -> None:
        """Kill a member, and start another member with its transactional id, now or later."""
        number = self._chance.randrange(len(self.members))
        member = self.members[number]
        if member.dead:
            return
        self.counts["deaths"] += 1
        if self._chance.random() < 0.3:
            member.pause(self._chance.choice(LONG_PAUSES_MS))  # the member continues as a zombie
        else:
            member.kill()
        delay_ms = self._chance.choice(REPLACEMENT_DELAYS_MS)
        self.machine.schedule.at(
            self.machine.now_ms + delay_ms, partial(self._succeed, number, member)
        )

    def _succeed(self, number: int, before: Process) -> None:
        if self.members[number] is not before:
            return
        if not before.dead:
            self.zombies.append(before)
        self.members[number] = self._member(number)

    def _member(self, number: int) -> Member:
        name = f"m{number}"
        self._lives[name] += 1
        member = Member(self.network, name, self.knobs, self.checker, self._lives[name])
        member.on_done = partial(self._member_ended, number, member)
        return member

    def _member_ended(self, number: int, member: Member) -> None:
        """Start a fenced member again, unless it has been replaced."""
        member.kill()
        delay_ms = self._chance.choice([1, 50])
        self.machine.schedule.at(
            self.machine.now_ms + delay_ms, partial(self._succeed, number, member)
        )

    def repeat(self) -> None:
        """Send an earlier request of a client once more, on a connection of its own."""
        frames = [frame for frame in self._heard if self._may_be_repeated(frame)]
        if not frames:
            return
        self.counts["repeats"] += 1
        hosts = list(self.network.hosts)
        address = self._chance.choice(hosts) if len(hosts) > 1 else hosts[0]
        wire = Wire(self.network, None, None, address)
        wire.connect()
        for frame in self._chance.sample(frames, min(len(frames), self._chance.randint(1, 2))):
            wire.send(Frame(None, frame.content), self._chance.choice([1, 20, 200]))

    def _may_be_repeated(self, frame: Frame) -> bool:
        client = frame.client
        assert client is not None
        # Transaction version 1 does not distinguish transactions of one epoch.
        return client.speaks_v2 or frame.api_key == ApiKey.PRODUCE
