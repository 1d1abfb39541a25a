"""A member that sleeps through its session wakes up and may not commit: its partitions have another owner."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.conformance.clients.observer import Observer, wait_until
from tests.conformance.clients.scenario import PARTITIONS, ProgramClient
from tests.fixtures.history.members import History, check_deliveries, check_ledger
from tests.fixtures.targets import Target

PROGRAMS = {"confluent-kafka": "confluent", "kafka-python": "kafka_python", "aiokafka": "aio"}


@pytest.fixture(params=PROGRAMS)
def client(
    request: pytest.FixtureRequest, target: Target, scratch: Path
) -> Iterator[ProgramClient]:
    client = ProgramClient.python(
        f"{request.param}-zombie",
        PROGRAMS[request.param],
        target.bootstrap,
        scratch,
        target.client_properties,
    )
    yield client
    client.close()


def _wait_for_commit(history: History, *members: str) -> None:
    """Wait until each of the members has reported a new commit."""
    seen = len(history.events())

    def probe() -> bool:
        committed = {each.member for each in history.events()[seen:] if each.kind == "committed"}
        return committed >= set(members)

    wait_until(f"commits of {members}", probe)


@pytest.mark.slow
def test_a_sleeper_loses_its_partitions_and_its_vote(
    client: ProgramClient, observer: Observer
) -> None:
    topic, group, history = client.name, f"{client.name}-group", History()
    client.create_topic(topic, PARTITIONS)
    with ExitStack() as stack:
        peers = {name: client.peer(name, history) for name in ("sleeper", "waker")}
        for name, peer in peers.items():
            stack.callback(peer.kill)
            peer.send(do="member", name=name, group=group, topic=topic)
        observer.wait_stable(group, set(peers), PARTITIONS)
        load = client.load(topic)
        stack.callback(load.stop)
        _wait_for_commit(history, "sleeper", "waker")

        os.kill(peers["sleeper"].pid, signal.SIGSTOP)
        observer.wait_stable(group, {"waker"}, PARTITIONS)
        _wait_for_commit(history, "waker")
        os.kill(peers["sleeper"].pid, signal.SIGCONT)
        observer.wait_stable(group, set(peers), PARTITIONS)
        _wait_for_commit(history, "sleeper", "waker")

    problems = check_ledger(observer.ledger(group))
    # The sleeper may still say what it had fetched before, so its starts are not checked to the record.
    problems += check_deliveries(history.events(), commits_told=False)
    assert not problems, "\n".join(problems)
