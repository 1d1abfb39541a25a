"""Clients of a broker in this process: the blocking driver over the shared loop."""

from __future__ import annotations

import threading
import time
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from headrace.broker.context import CloseConnection
from headrace.clients.config import ClientConfig
from headrace.clients.drivers import open_blocking_driver
from headrace.clients.drivers.local_blocking import LocalBlockingDriver
from headrace.clients.flows.admin import NewTopic, create_topics
from headrace.clients.flows.effects import Call, Invoke, Sleep, Wait
from headrace.clients.flows.fetch import FetchLimits, FetchPosition, fetch
from headrace.clients.flows.metadata import refresh
from headrace.clients.flows.produce import produce
from headrace.embedded.clock import ManualClock
from headrace.embedded.runtime import BrokerRuntime
from headrace.errors import ApiError, ClosedError, ErrorCode, TransportError
from headrace.protocol.messages.metadata import MetadataRequest
from headrace.protocol.messages.produce import ProduceRequest
from headrace.records.builder import build_batch
from headrace.types import TopicPartition
from tests.fixtures.broker_harness import BrokerHarness, fetch_request, produce_request, values
from tests.unit.clients.drivers.test_background import PATIENCE_S, in_thread

T0 = TopicPartition("t", 0)
BATCH = build_batch([(b"k", b"v", (), 1)])
LIMITS = FetchLimits(max_wait_ms=500)


def new_simulation(*, virtual: bool = True) -> BrokerRuntime:
    harness = BrokerHarness()
    return BrokerRuntime(harness.broker, ManualClock(harness.now_ms) if virtual else None)


def open_driver(simulation: BrokerRuntime) -> LocalBlockingDriver:
    driver = open_blocking_driver(simulation, ClientConfig(request_timeout_ms=30_000))
    assert isinstance(driver, LocalBlockingDriver)
    return driver


def with_topic(simulation: BrokerRuntime) -> LocalBlockingDriver:
    driver = open_driver(simulation)
    assert driver.run(create_topics(driver.engine.state, [NewTopic("t", 1)])) == {"t": None}
    return driver


def write(driver: LocalBlockingDriver) -> int:
    return driver.run(produce(driver.engine.state, T0, BATCH, -1, 30_000)).base_offset


def read(driver: LocalBlockingDriver, offset: int) -> bytes:
    fetched = driver.run(fetch(driver.engine.state, {T0: FetchPosition(offset)}, LIMITS))
    return bytes(fetched[T0].records)


def test_records_that_must_be_synced_are_acknowledged_and_read_as_bytes() -> None:
    driver = with_topic(new_simulation())
    assert write(driver) == 0
    assert values(read(driver, 0)) == [b"v"]


def test_waiting_with_a_manual_clock_takes_only_time_of_the_clock() -> None:
    simulation = new_simulation()
    driver = with_topic(simulation)
    began, began_ms = time.monotonic(), simulation.now_ms()
    assert read(driver, 0) == b""

    def pausing():
        yield Sleep(3_600_000, TransportError("unused"))

    driver.run(pausing(), 36_000_000)
    assert simulation.now_ms() - began_ms >= 500 + 0.8 * 3_600_000
    assert time.monotonic() - began < PATIENCE_S


def test_advancing_the_clock_fires_due_timers_in_order() -> None:
    simulation = new_simulation()
    driver = open_driver(simulation)
    fired: list[int] = []
    with driver.enter() as engine:
        for delay_ms in (30, 10, 20, 70):
            engine.at(engine.now_ms + delay_ms, partial(fired.append, delay_ms))
    simulation.advance(50)
    assert fired == [10, 20, 30]


def test_a_write_in_another_thread_ends_a_long_poll() -> None:
    simulation = new_simulation(virtual=False)
    driver, other = with_topic(simulation), open_driver(simulation)
    limits = FetchLimits(max_wait_ms=60_000)
    reading = fetch(driver.engine.state, {T0: FetchPosition(0)}, limits)
    thread, outcomes = in_thread(lambda: driver.run(reading, 120_000))
    write(other)
    thread.join(PATIENCE_S)
    assert values(outcomes[0][T0].records) == [b"v"]


def test_a_change_by_another_thread_ends_a_wait() -> None:
    driver = open_driver(new_simulation(virtual=False))
    changed: list[bool] = []

    def waiting():
        while not changed:
            yield Wait()
        return "done"

    thread, outcomes = in_thread(lambda: driver.run(waiting(), 60_000))
    with driver.enter() as engine:
        changed.append(True)
        engine.notify()
    thread.join(PATIENCE_S)
    assert outcomes == ["done"]


def test_the_background_thread_runs_timers_and_callbacks_and_ends_with_the_broker() -> None:
    simulation = new_simulation(virtual=False)
    driver = open_driver(simulation)
    driver.start_background()
    with driver.enter() as engine:
        engine.at(engine.now_ms + 3_600_000, lambda: None)
    called = threading.Event()
    with driver.enter() as engine:
        engine.at(engine.now_ms + 5, lambda: engine.callbacks.append(called.set))
    assert called.wait(PATIENCE_S)
    assert "headrace-embedded" in [thread.name for thread in threading.enumerate()]
    driver.close()
    simulation.close()
    assert "headrace-embedded" not in [thread.name for thread in threading.enumerate()]


def test_the_background_thread_misses_no_change_before_it_sleeps(monkeypatch) -> None:
    simulation = new_simulation(virtual=False)
    with simulation.condition:
        monkeypatch.setattr(
            simulation.condition, "release", lambda: pytest.fail("the lock was free")
        )
        assert not simulation._call_back()
        monkeypatch.undo()


def test_a_manual_clock_needs_no_thread() -> None:
    before = threading.active_count()
    open_driver(new_simulation()).start_background()
    assert threading.active_count() == before


class RecordingBroker:
    """A broker that records the order of its calls."""

    apis = ()
    compaction_due = False

    def __init__(self, order: list[str], next_deadline_ms: int) -> None:
        self.order = order
        self.next_deadline_ms: int | None = next_deadline_ms

    def tick(self, now_ms: int) -> None:
        self.order.append("broker")
        self.next_deadline_ms = None

    def start_sync(self) -> None:
        return None


def test_clients_come_before_the_brokers_time_outs() -> None:
    clock = ManualClock()
    order: list[str] = []
    broker: Any = RecordingBroker(order, clock.now_ms() + 100)
    simulation = BrokerRuntime(broker, clock)
    for name in ("first", "second"):
        driver = open_driver(simulation)
        with driver.enter() as engine:
            engine.at(engine.now_ms + 100, partial(order.append, name))
    simulation.advance(100)
    assert order == ["first", "second", "broker"]


def test_the_programs_code_runs_without_the_lock_and_may_call_again() -> None:
    simulation = new_simulation(virtual=False)
    driver = with_topic(simulation)

    def code() -> list[str]:
        thread, outcomes = in_thread(lambda: write(open_driver(simulation)))
        thread.join(PATIENCE_S)
        assert outcomes == [0]
        return list(driver.run(refresh(driver.engine.state, None)).topics)

    def flow():
        return (yield Invoke(code))

    assert driver.run(flow()) == ["t"]


def test_callbacks_run_before_the_call_returns_and_may_call_again() -> None:
    driver = with_topic(new_simulation())
    told: list[int] = []

    def flow():
        driver.engine.callbacks.append(lambda: told.append(write(driver)))
        yield from ()

    driver.run(flow())
    assert told == [0]


def test_waiting_for_the_broker_from_inside_of_it_is_refused() -> None:
    driver = with_topic(new_simulation())
    refusals: list[str] = []

    def inside(_: object) -> None:
        with pytest.raises(RuntimeError) as refusal:
            write(driver)
        refusals.append(str(refusal.value))

    with driver.enter() as engine:
        engine.submit(Call(request=MetadataRequest(topics=None)), inside)
    assert "cannot call a method that waits for the client" in refusals[0]
    assert write(driver) == 0


def test_a_broker_that_is_closed_fails_calls_and_takes_no_more_clients() -> None:
    simulation = new_simulation(virtual=False)
    driver = with_topic(simulation)
    asked = threading.Event()
    reading = fetch(driver.engine.state, {T0: FetchPosition(0)}, FetchLimits(max_wait_ms=60_000))

    def flow():
        asked.set()
        return (yield from reading)

    thread, outcomes = in_thread(lambda: driver.run(flow(), 120_000))
    assert asked.wait(PATIENCE_S)
    simulation.close()
    thread.join(PATIENCE_S)
    assert outcomes[0][T0].error == ErrorCode.NETWORK_EXCEPTION
    with pytest.raises(ClosedError, match="the embedded broker is closed"):
        driver.run(one_call(), 1000)
    with pytest.raises(ClosedError):
        open_driver(simulation)


def one_call():
    return (yield Call(request=MetadataRequest(topics=None)))


def test_closing_a_client_ends_its_calls_and_leaves_the_others() -> None:
    simulation = new_simulation(virtual=False)
    driver, other = with_topic(simulation), open_driver(simulation)
    waiting = threading.Event()

    def flow():
        waiting.set()
        yield Wait()

    thread, outcomes = in_thread(lambda: driver.run(flow(), 60_000))
    assert waiting.wait(PATIENCE_S)
    driver.close()
    thread.join(PATIENCE_S)
    assert isinstance(outcomes[0], ClosedError)
    with pytest.raises(ClosedError):
        write(driver)
    assert write(other) == 0


def test_malformed_requests_and_faults_of_the_broker_raise_errors(
    caplog,
) -> None:
    simulation = new_simulation()
    driver = open_driver(simulation)

    def refuse(*_: object) -> None:
        raise CloseConnection("no such thing")

    def fail(*_: object) -> None:
        raise ZeroDivisionError

    broker: Any = SimpleNamespace(
        handle=refuse, next_deadline_ms=None, start_sync=lambda: None, compaction_due=False
    )
    simulation.broker = broker
    with pytest.raises(TransportError, match="no such thing"):
        driver.run(one_call())
    broker.handle = fail
    with pytest.raises(ApiError, match="METADATA failed: ZeroDivisionError") as failure:
        driver.run(one_call())
    assert failure.value.code == ErrorCode.UNKNOWN_SERVER_ERROR
    assert "ZeroDivisionError" in caplog.text


def test_a_call_that_the_broker_does_not_answer_ends_at_its_deadline() -> None:
    simulation = new_simulation()
    driver = with_topic(simulation)
    began_ms = simulation.now_ms()
    reading = fetch(driver.engine.state, {T0: FetchPosition(0)}, FetchLimits(max_wait_ms=60_000))
    assert driver.run(reading, 1000)[T0].error == ErrorCode.NETWORK_EXCEPTION
    assert simulation.now_ms() - began_ms == 1000


def test_a_request_without_an_answer_has_none() -> None:
    driver = with_topic(new_simulation())

    def flow():
        return (yield Call(request=ProduceRequest(acks=0, timeout_ms=1000), answered=False))

    assert driver.run(flow()) is None


# Calls without a waiting program


@pytest.mark.parametrize("how", ["closed", "timed out"])
def test_a_client_that_gives_a_call_up_leaves_nothing_waiting_in_the_broker(how: str) -> None:
    simulation = new_simulation()
    driver = with_topic(simulation)
    told: list[object] = []
    request = fetch_request(("t", 0, 0), max_wait_ms=300_000)
    with driver.enter() as engine:
        for _ in range(3):
            engine.submit(Call(request=request, max_version=12), told.append)
    assert len(simulation.broker.services.purgatory) == 3
    if how == "closed":
        driver.close()
    else:
        simulation.advance(30_000)
    assert len(simulation.broker.services.purgatory) == 0
    error = ClosedError if how == "closed" else TransportError
    assert [type(outcome) for outcome in told] == [error] * 3
    write(open_driver(simulation))
    assert len(told) == 3


def test_records_of_a_client_that_closed_before_the_response_are_kept() -> None:
    simulation = new_simulation()
    driver = with_topic(simulation)
    told: list[object] = []
    with simulation.condition:  # nothing is synced meanwhile
        driver.engine.submit(
            Call(request=produce_request("t", 0, bytes(BATCH), acks=-1), max_version=12),
            told.append,
        )
        assert told == []
        driver.close()
    assert [type(outcome) for outcome in told] == [ClosedError]
    assert values(read(open_driver(simulation), 0)) == [b"v"]
