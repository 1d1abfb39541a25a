"""No thread may close a dropped client if the program moves the clock of its broker."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import headrace
from headrace.clients.blocking import BlockingClient
from headrace.clients.drivers import unclosed
from headrace.embedded.clock import ManualClock

CLIENTS: dict[str, Callable[[headrace.Broker], Any]] = {
    "Producer": lambda broker: headrace.Producer(broker, linger_ms=1_000),
    "Consumer": lambda broker: headrace.Consumer(broker, group="g"),
    "Admin": headrace.Admin,
    "BlockingClient": BlockingClient,
}


def use(client: Any) -> None:
    """Leave work that `close` would finish: a record that lingers, a membership."""
    if isinstance(client, headrace.Producer):
        client.send("t", b"one")
    elif isinstance(client, headrace.Consumer):
        client.subscribe(["t"])
        client.poll(0)


def drop(broker: headrace.Broker, kind: str) -> None:
    """Drop the only reference to an open client."""
    clients = [CLIENTS[kind](broker)]
    use(clients[0])
    with pytest.warns(
        ResourceWarning, match=f"a {kind} of Headrace was dropped without being closed"
    ):
        clients.clear()


@pytest.mark.parametrize("auto_advance", [True, False])
@pytest.mark.parametrize("kind", CLIENTS)
def test_a_client_with_a_manual_clock_is_not_closed_by_a_thread(
    kind: str,
    auto_advance: bool,  # noqa: FBT001 - a parameter of the test
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    started: list[Any] = []
    monkeypatch.setattr("_thread.start_new_thread", lambda *call: started.append(call))
    clock = ManualClock(auto_advance=True)
    with headrace.Broker(clock=clock) as broker:
        broker.create_topic("t")
        clock.auto_advance = auto_advance
        before_ms = clock.now_ms()
        drop(broker, kind)
        assert not started
        assert clock.now_ms() == before_ms


def test_the_records_of_a_producer_that_was_dropped_are_sent_as_the_clock_moves() -> None:
    with headrace.Broker(clock=ManualClock()) as broker:
        broker.create_topic("t")
        drop(broker, "Producer")
        broker.advance(2_000)
        assert [record.value for record in broker.read("t", 0, 0)] == [b"one"]


def test_a_thread_closes_a_client_whose_clock_moves_by_itself() -> None:
    with headrace.Broker() as broker:
        broker.create_topic("t")
        drop(broker, "Producer")
        for done in list(unclosed._closing):
            assert done.acquire(timeout=10)
            done.release()
        assert [record.value for record in broker.read("t", 0, 0)] == [b"one"]
