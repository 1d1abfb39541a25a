"""The guard of a broker: the session of a killed broker ends at once, and a signal to either process stops both."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import psutil
import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from tests.fixtures.cluster_process import wait_until
from tests.fixtures.processes import ServerProcess
from tests.fixtures.zookeeper import ZooKeeper

pytestmark = pytest.mark.slow

WAIT_S = 15.0
SESSION_MS = 20_000
"""The longest session of the ensemble. It is longer than a test waits, so only a guard can end it in time."""
GUARD_MEMORY_LIMIT = 12 * 1024 * 1024


class Guarded(ServerProcess):
    """A broker with its guard, which is the process that the test has started."""

    def __init__(self, directory: Path, number: int, connect: str) -> None:
        timeout = f"zookeeper.session.timeout.ms={SESSION_MS}"
        super().__init__(
            directory / f"data-{number}",
            log_path=directory / f"broker-{number}.log",
            arguments=["--zookeeper", connect, "--broker-id", str(number), "--config", timeout],
        )

    @property
    def broker_pid(self) -> int:
        found = re.search(rb" pid=(\d+)", self.ready_line)
        assert found is not None
        return int(found[1])

    def kill(self) -> None:
        """Kill the broker and its guard."""
        if self.ready_line:
            with suppress(ProcessLookupError):
                os.kill(self.broker_pid, signal.SIGKILL)
        super().kill()


@pytest.fixture
def brokers(single: ZooKeeper, tmp_path: Path) -> Iterator[list[Guarded]]:
    connect = f"{single.address}/{tmp_path.name}"
    made = [Guarded(tmp_path, number, connect) for number in (1, 2)]
    with ExitStack() as stack:
        for each in made:
            stack.callback(each.kill)
            each.start()
        yield made


def leader(broker: Guarded) -> int:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    return int(admin.list_topics("orders", WAIT_S).topics["orders"].partitions[0].leader)


def test_another_broker_leads_before_the_session_of_a_killed_one_would_end(
    brokers: list[Guarded],
) -> None:
    admin = AdminClient({"bootstrap.servers": brokers[0].bootstrap})
    for created in admin.create_topics([NewTopic("orders", 1, 2)]).values():
        created.result(WAIT_S)
    killed = brokers[leader(brokers[0]) - 1]
    (other,) = (each for each in brokers if each is not killed)

    def text() -> str:
        return killed.log + other.log

    wait_until(
        lambda: len(admin.list_topics("orders").topics["orders"].partitions[0].isrs) == 2, text
    )
    os.kill(killed.broker_pid, signal.SIGKILL)
    assert killed.wait(WAIT_S) == 128 + signal.SIGKILL
    assert "broker_failed exit=SIGKILL session=ended" in killed.log
    wait_until(lambda: leader(other) == brokers.index(other) + 1, text)
    killed.start()


def test_a_signal_to_the_guard_stops_the_broker_in_order(brokers: list[Guarded]) -> None:
    first, second = brokers
    assert os.getpgid(first.broker_pid) != os.getpgid(first.pid), "Ctrl-C would reach it twice"
    assert first.stop(40) == 0
    assert "server_stopped broker=1 clean=True" in first.log
    second.signal(signal.SIGINT)
    assert second.wait(40) == 0
    assert "broker_failed" not in first.log + second.log


def test_a_signal_to_the_broker_stops_the_guard(brokers: list[Guarded]) -> None:
    os.kill(brokers[0].broker_pid, signal.SIGTERM)
    assert brokers[0].wait(40) == 0


def test_the_broker_stops_in_order_if_its_guard_is_killed(brokers: list[Guarded]) -> None:
    broker = psutil.Process(brokers[0].broker_pid)
    os.kill(brokers[0].pid, signal.SIGKILL)
    psutil.wait_procs([broker], WAIT_S)
    assert "guard_ended broker=1 action=stopping" in brokers[0].log
    assert "server_stopped broker=1 clean=True" in brokers[0].log


def test_a_guard_is_small(brokers: list[Guarded]) -> None:
    assert psutil.Process(brokers[0].pid).memory_info().rss < GUARD_MEMORY_LIMIT


def test_a_second_signal_ends_the_session_too(brokers: list[Guarded]) -> None:
    os.kill(brokers[0].broker_pid, signal.SIGSTOP)  # it cannot stop in order
    for _ in range(2):
        brokers[0].signal(signal.SIGTERM)
    os.kill(brokers[0].broker_pid, signal.SIGKILL)
    assert brokers[0].wait(WAIT_S) == 128 + signal.SIGKILL
    assert "session=ended" in brokers[0].log
