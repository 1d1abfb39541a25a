"""Commits of two brokers through their lanes, while servers of ZooKeeper are killed and frozen, and sessions end.

Each commit adds 1 to a counter. So the counter shows a commit that was applied twice, and a reported one that was lost.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.broker.metadata.commit_lane import Change, CommitError
from headrace.broker.metadata.metadata_writer import MetadataWriter
from headrace.deferred import Deferred
from headrace.errors import RequestTimedOutError
from headrace.metadata_stores.zookeeper.store import ZooKeeperMetadataStore
from headrace.ports import Put, SessionLost, check_of
from tests.fixtures.logs import RecordingJournal
from tests.fixtures.metadata_stores import stored
from tests.fixtures.zookeeper import ZooKeeper
from tests.integration.zookeeper.conftest import Open, end_session

pytestmark = pytest.mark.java
FAULTS_S = 15.0
SETTLING_S = 40.0


class Adder:
    """A broker that adds 1 to the counter, again and again, in two lanes."""

    def __init__(self, store: ZooKeeperMetadataStore, broker_id: int) -> None:
        self.store = store
        self.journal = RecordingJournal()
        self.writer = MetadataWriter(store, broker_id, random.randbytes(16), self.journal)
        self.writer.begin()
        self.added = 0
        self.unknown = 0
        self.refused = 0
        self._running: dict[Deferred[CommitError], None] = {}

    def add(self, counter: str) -> None:
        """Begin to add 1."""

        def merge() -> Change:
            entry = self.writer.image.get(counter)
            count = 0 if entry is None else int(entry.value)
            return [check_of(counter, entry)], [Put(counter, b"%d" % (count + 1))]

        result = self.writer.lane("isr").merge(merge)
        self._running[result] = None
        result.on_done(lambda error: self._added(result, error))

    def _added(self, result: Deferred[CommitError], error: CommitError) -> None:
        self._running.pop(result, None)
        if error is None:
            self.added += 1
        elif isinstance(error, RequestTimedOutError):
            self.unknown += 1
        else:
            self.refused += 1

    @property
    def is_idle(self) -> bool:
        return not self._running and self.writer.lane("isr").is_idle

    def has_session(self) -> bool:
        """Return whether there is a connected session; begin another one if it was lost."""
        failure = self.store._engine.failure
        if isinstance(failure, SessionLost):
            self.store.renew()
        return failure is None

    def turn(self) -> None:
        """Do what the loop of a broker does."""
        self.store.run_pending()
        self.writer.tick(time.monotonic_ns() // 1_000_000)


def faults(ensemble: ZooKeeper, adders: list[Adder], chance: random.Random) -> Iterator[None]:
    """Meet one fault after the other: of one server, of all servers, or of a session. Each step takes a short time."""
    while True:
        end_session(chance.choice(adders).store)
        nodes = ensemble.nodes if chance.random() < 0.25 else [chance.choice(ensemble.nodes)]
        began, lasts_s = time.monotonic(), chance.uniform(0.2, 2.5)
        kills = chance.random() < 0.5
        for node in nodes:
            (node.kill if kills else node.freeze)()
        while time.monotonic() < began + lasts_s:
            yield
        for node in nodes:
            (node.start if kills else node.thaw)()
        while any(node.mode() is None for node in ensemble.nodes):
            yield


def test_every_reported_commit_takes_effect_once_whatever_fails(
    tmp_path: Path, opened: Open, journal: RecordingJournal
) -> None:
    chance = random.Random(time.time_ns())
    with ZooKeeper(tmp_path, nodes=3) as ensemble:
        adders = [Adder(opened(ensemble, session_timeout_ms=3_000), number) for number in (1, 2)]
        running, until = faults(ensemble, adders, chance), time.monotonic() + FAULTS_S
        while time.monotonic() < until:
            next(running)
            for adder in adders:
                if adder.is_idle:
                    adder.add("counter")
                adder.turn()
            adders[0].store._arrived.wait(0.002)
        ensemble.thaw_all_and_start()
        deadline = time.monotonic() + SETTLING_S
        while not all(adder.is_idle and adder.has_session() for adder in adders):
            assert time.monotonic() < deadline, "a lane does not settle its last commit"
            for adder in adders:
                adder.turn()
            adders[0].store._arrived.wait(0.01)
        counts = [int(stored(adder.store)["counter"].value) for adder in adders]
        added = sum(adder.added for adder in adders)
        unknown = sum(adder.unknown for adder in adders)
        assert counts[0] == counts[1]
        assert added <= counts[0] <= added + unknown
        assert added > 10
        assert any(adder.store.session.number > 1 for adder in adders)
        for adder in adders:
            adder.turn()
            for key, entry in stored(adder.store).items():
                assert adder.writer.image.get(key) == entry
        assert not [fields for level, _, fields in journal.events if "edited" in str(fields)]
