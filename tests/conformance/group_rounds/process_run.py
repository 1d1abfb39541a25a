"""A group of processes under faults that a seed determines, and the checker of the members' ledgers.

The rules are those of tests/fixtures/group_rounds.py, checked on the ledgers that the members write:

* every record that was published is handled;
* while a member owns a partition, its records come in order, and none is left out;
* no partition is assigned to two members in one generation;
* a committed record is handled again only by a member that had polled it before the commit;
* a committed offset never decreases, so a member that was expelled while it slept commits nothing;
* two members handle one partition at the same time only if the first was stopped or slow: such cases are counted.
"""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import headrace
from tests.fixtures.processes import ServerProcess

PROGRAM = Path(__file__).with_name("member.py")
MOST_MEMBERS = 5
PARTITIONS = 6
PATIENCE_S = 60
EXPELLED_AFTER_S = 1.5
"""The session, minus the longest time between the last heartbeat and the sleep."""
SLOW_S = (0.5, 4.0)
"""Below the session and above the longest time between polls."""


class Line(NamedTuple):
    """One line of a member's ledger."""

    moment: float
    member: str
    what: str
    generation: int
    words: tuple[str, ...]


@dataclass
class Member:
    name: str
    process: subprocess.Popen[bytes]
    ledger: Path
    stopped_until: float = 0.0


@dataclass
class ProcessRun:
    """One topic, one group, one seed."""

    server: ServerProcess
    directory: Path
    seed: int
    assignor: str
    counts: Counter[str] = field(default_factory=Counter)
    members: list[Member] = field(default_factory=list)
    ledgers: list[Path] = field(default_factory=list)
    published: Counter[int] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.topic = self.group = f"round-{self.seed}"
        self._tick = threading.Event()

    def run(self, seconds: float = 6.0) -> None:
        """Run all events, wait until everything is committed, and check the ledgers."""
        self.directory.mkdir(parents=True)
        with headrace.Admin(self.server.bootstrap) as admin:
            admin.create_topic(self.topic, PARTITIONS)
        with headrace.Producer(self.server.bootstrap, linger_ms=0, retry_backoff_ms=50) as producer:
            try:
                for _ in range(3):
                    self.join()
                self._live(producer, time.monotonic() + seconds)
                self._finish()
            finally:
                self._end_all()
        LedgerChecker(self).checker()

    def _live(self, producer: headrace.Producer, end: float) -> None:
        events: dict[Callable[[], None], int] = {
            self.join: 4,
            self.leave: 3,
            self.kill: 3,
            self.stop: 3,
            self.crash: 1,
            self.restart: 1,
        }
        next_event = time.monotonic() + 2
        while time.monotonic() < end:
            self.publish(producer)
            self._wake()
            if time.monotonic() >= next_event:
                self.random.choices(list(events), list(events.values()))[0]()
                next_event = time.monotonic() + self.random.uniform(0.1, 0.8)
            producer.flush(30)
            self._tick.wait(0.03)  # some two hundred records a second
        self._make_up()

    def _make_up(self) -> None:
        """Run the kinds of events that have not occurred, by chance or because the machine is slow."""
        for count, event in (("kills", self.kill), ("stops", self.stop), ("leaves", self.leave)):
            if not self.counts[count]:
                self._wake(everybody=True)
                self.join()  # at least one member must be left
                event()

    # What happens

    def publish(self, producer: headrace.Producer) -> None:
        for _ in range(self.random.randrange(1, 10)):
            number = self.random.randrange(PARTITIONS)
            slow = self.random.random() < 0.004
            headers = [("slow", b"%.1f" % self.random.choice(SLOW_S))] if slow else ()
            self.counts["slow"] += slow
            value = b"%d" % self.published[number]
            producer.send(self.topic, value, partition=number, headers=headers)
            self.published[number] += 1

    def join(self) -> None:
        if len(self.members) >= MOST_MEMBERS:
            return
        name = f"m{len(self.ledgers)}"
        ledger = self.directory / f"{name}.txt"
        ledger.touch()
        arguments = (
            self.server.bootstrap,
            self.group,
            self.topic,
            name,
            self.assignor,
            str(ledger),
        )
        with (self.directory / f"{name}.err").open("wb") as errors:
            process = subprocess.Popen(
                [sys.executable, str(PROGRAM), *arguments], stdin=subprocess.DEVNULL, stderr=errors
            )
        self.members.append(Member(name, process, ledger))
        self.ledgers.append(ledger)
        self.counts["joins"] += 1

    def _some(self) -> Member | None:
        able = [member for member in self.members if not member.stopped_until]
        return self.random.choice(able) if len(able) > 1 else None

    def leave(self) -> None:
        self._end_one(signal.SIGTERM, "leaves")

    def kill(self) -> None:
        self._end_one(signal.SIGKILL, "kills")

    def _end_one(self, number: signal.Signals, count: str) -> None:
        if (member := self._some()) is not None:
            self.members.remove(member)
            member.process.send_signal(number)
            member.process.wait(PATIENCE_S)
            self.counts[count] += 1

    def stop(self) -> None:
        if (member := self._some()) is not None:
            member.process.send_signal(signal.SIGSTOP)
            member.stopped_until = time.monotonic() + self.random.choice([0.3, 1.0, 4.0])
            self.counts["stops"] += 1

    def _wake(self, *, everybody: bool = False) -> None:
        for member in self.members:
            if member.stopped_until and (everybody or time.monotonic() >= member.stopped_until):
                member.stopped_until = 0.0
                member.process.send_signal(signal.SIGCONT)

    def crash(self) -> None:
        self.server.kill()
        self.server.start()
        self.counts["crashes"] += 1

    def restart(self) -> None:
        self.server.restart()
        self.counts["restarts"] += 1

    # The end

    def _finish(self) -> None:
        self._wake(everybody=True)
        if not self.members:
            self.join()
        deadline = time.monotonic() + PATIENCE_S
        with headrace.Admin(self.server.bootstrap) as admin:
            while True:
                offsets = admin.offsets(self.group)
                found = {number: at.offset for (_, number), at in offsets.items()}
                if all(found.get(number) == count for number, count in self.published.items()):
                    return
                assert time.monotonic() < deadline, (found, self.published, self._troubles())

    def _troubles(self) -> dict[str, str]:
        return {
            path.name: path.read_text()[-2000:]
            for path in self.directory.glob("*.err")
            if path.stat().st_size
        }

    def _end_all(self) -> None:
        for member in self.members:
            member.process.send_signal(signal.SIGCONT)
            member.process.terminate()
        for member in self.members:
            try:
                member.process.wait(15)
            except subprocess.TimeoutExpired:
                member.process.kill()
                member.process.wait()

    def lines(self) -> list[Line]:
        """The lines of all members' ledgers, sorted by time."""
        found = [line for ledger in self.ledgers for line in _read(ledger)]
        return sorted(found)


def _read(ledger: Path) -> Iterator[Line]:
    for text in ledger.read_text().splitlines(keepends=True):
        words = text.split()
        if text.endswith("\n") and len(words) >= 3:  # a killed process may leave half a line
            yield Line(float(words[0]), ledger.stem, words[1], int(words[2]), tuple(words[3:]))


class LedgerChecker:
    """Check the complete ledgers of one run."""

    def __init__(self, run: ProcessRun) -> None:
        self.run = run
        self.handled: dict[int, set[int]] = defaultdict(set)
        self.next: dict[tuple[str, int], int | None] = {}
        """Next expected offset by member and owned partition; None before the first record."""
        self.owners: dict[tuple[int, int], str] = {}
        self.committed: Counter[int] = Counter()
        self.committed_at: dict[int, list[tuple[float, int]]] = defaultdict(list)
        self.in_hand: dict[str, Line] = {}
        self.by_member: dict[str, list[Line]] = defaultdict(list)

    def checker(self) -> None:
        lines = self.run.lines()
        for line in lines:
            self.by_member[line.member].append(line)
        for line in lines:
            getattr(self, f"_{line.what}", lambda _line: None)(line)
            self.run.counts[line.what] += 1
        for number, count in self.run.published.items():
            missing = set(range(count)) - self.handled[number]
            assert not missing, f"lost in partition {number}: {sorted(missing)[:5]}"

    def _take(self, line: Line) -> None:
        number = int(line.words[0])
        owner = self.owners.setdefault((line.generation, number), line.member)
        assert owner == line.member, f"{owner} and {line} in one generation"
        self.next[line.member, number] = None

    def _give(self, line: Line) -> None:
        self.next.pop((line.member, int(line.words[0])), None)

    def _handle(self, line: Line) -> None:
        number, offset, value = map(int, line.words)
        assert value == offset, line
        assert (line.member, number) in self.next, f"{line} without being assigned it"
        expected = self.next[line.member, number]
        assert expected in {None, offset}, f"{line}, but {expected} is next"
        assert offset >= self.committed[number] or self._had_it(line, number, offset), (
            f"{line} again, though {self.committed[number]} is committed"
        )
        self.next[line.member, number] = offset + 1
        self.handled[number].add(offset)
        for other in [held for held in self.in_hand.values() if held.words[0] == line.words[0]]:
            self._overlap(other, line)
        self.in_hand[line.member] = line

    def _overlap(self, earlier: Line, line: Line) -> None:
        """Check two members that handle one partition: one was expelled while it slept with records, or is dead."""
        if earlier.member == line.member or self.by_member[earlier.member][-1] == earlier:
            return
        asleep_s = line.moment - min(self._last_call(earlier), self._last_call(line))
        assert asleep_s > EXPELLED_AFTER_S, f"{earlier} and {line} together, {asleep_s:.3f} s"
        self.run.counts["overlaps"] += 1

    def _had_it(self, line: Line, number: int, offset: int) -> bool:
        """Return whether this record's poll may lie before the commit of another member.

        A stopped member continues with its polled records until its next request fails because it was
        expelled.
        """
        first = next(moment for moment, at in self.committed_at[number] if at > offset)
        polled = self._last_call(line)
        self.run.counts["in_hand"] += 1
        return polled < first

    def _last_call(self, line: Line) -> float:
        return max(
            (
                each.moment
                for each in self.by_member[line.member]
                if each.moment < line.moment and each.what in {"poll", "commit", "fenced", "take"}
            ),
            default=0.0,
        )

    def _done(self, line: Line) -> None:
        self.in_hand.pop(line.member, None)

    def _commit(self, line: Line) -> None:
        number, offset = map(int, line.words)
        late = [at for moment, at in self.committed_at[number] if at > offset]
        assert not late, f"{line} goes back from {max(late)}"
        self.committed[number] = offset
        self.committed_at[number].append((line.moment, offset))
