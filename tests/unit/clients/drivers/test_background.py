"""The blocking driver beyond single calls: its thread, several threads, the program's code, closing."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from headrace.clients.config import ClientConfig, parse_config
from headrace.clients.drivers.tcp_blocking import TcpBlockingDriver
from headrace.clients.flows.effects import Call, ClientState, Invoke, Sleep, Wait
from headrace.clients.flows.metadata import refresh
from headrace.errors import ClosedError, TransportError
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.messages.metadata import MetadataRequest, MetadataResponse
from tests.unit.clients.fake_broker import FakeCluster, Fault

PATIENCE_S = 10


@pytest.fixture
def cluster() -> Iterator[FakeCluster]:
    with FakeCluster(topics={"t": 1}) as running:
        yield running


@pytest.fixture
def driver(cluster) -> Iterator[TcpBlockingDriver]:
    opened = open_driver(cluster.bootstrap)
    yield opened
    opened.close()


def open_driver(bootstrap: str, **properties) -> TcpBlockingDriver:
    config = parse_config(ClientConfig, properties, bootstrap_servers=bootstrap)
    return TcpBlockingDriver(ClientState(retry_backoff_ms=5), config)


def in_thread(function: Callable[[], object]) -> tuple[threading.Thread, list]:
    outcomes: list = []

    def work() -> None:
        try:
            outcomes.append(function())
        except Exception as error:  # noqa: BLE001 - the test looks at it
            outcomes.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    return thread, outcomes


def ask(driver: TcpBlockingDriver) -> list[str]:
    return list(driver.run(refresh(driver.state, ["t"])).topics)


def waiting_until(done: Callable[[], bool]):
    while not done():
        yield Wait()
    return "done"


# The thread


def test_timers_and_answers_do_not_wait_for_the_program(driver) -> None:
    driver.start_background()
    fired, answered = threading.Event(), threading.Event()
    with driver.enter() as engine:
        engine.at(engine.now_ms + 10, fired.set)
        engine.submit(Call(request=MetadataRequest(topics=None)), lambda _: answered.set())
    assert fired.wait(PATIENCE_S)
    assert answered.wait(PATIENCE_S)


def test_a_new_timer_wakes_the_sleeping_thread(driver) -> None:
    driver.start_background()
    with driver.enter() as engine:
        engine.at(engine.now_ms + 3_600_000, lambda: None)
    fired = threading.Event()
    with driver.enter() as engine:
        engine.at(engine.now_ms + 5, fired.set)
    assert fired.wait(PATIENCE_S)


def test_a_driver_starts_no_thread_before_start_background(driver) -> None:
    before = threading.active_count()
    with driver.enter() as engine:
        engine.at(engine.now_ms, lambda: None)
    assert threading.active_count() == before


def test_closing_ends_the_thread(driver) -> None:
    driver.start_background()
    driver.start_background()
    names = [thread.name for thread in threading.enumerate()]
    assert names.count("headrace-background") == 1
    driver.close()
    assert "headrace-background" not in [thread.name for thread in threading.enumerate()]


def test_a_client_that_is_not_closed_does_not_keep_the_interpreter(cluster) -> None:
    script = (
        "import sys; from tests.unit.clients.drivers.test_background import open_driver, ask;"
        "driver = open_driver(sys.argv[1]); driver.start_background(); print(ask(driver))"
    )
    finished = subprocess.run(
        [sys.executable, "-c", script, cluster.bootstrap],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert finished.stdout == "['t']\n"
    assert finished.stderr == ""


def test_callbacks_that_raise_are_reported_and_stop_nothing(driver, caplog) -> None:
    driver.start_background()
    fired, called = threading.Event(), threading.Event()

    def fail(*_: object) -> None:
        raise ZeroDivisionError("the callback's own fault")

    with driver.enter() as engine:
        engine.at(engine.now_ms, fail)
        engine.at(engine.now_ms + 1, fired.set)
        engine.submit(Call(request=MetadataRequest(topics=None)), fail)
        engine.callbacks.extend((fail, called.set))
    assert fired.wait(PATIENCE_S)
    assert called.wait(PATIENCE_S)
    assert ask(driver) == ["t"]
    assert caplog.text.count("the callback's own fault") >= 3


def test_the_thread_runs_callbacks_that_become_due_while_the_program_is_elsewhere(driver) -> None:
    driver.start_background()
    done = threading.Event()
    where: list[str] = []

    def called() -> None:
        where.append(threading.current_thread().name)
        assert ask(driver) == ["t"], "it may use the client"
        done.set()

    with driver.enter() as engine:
        engine.at(engine.now_ms + 10, lambda: engine.callbacks.append(called))
    assert done.wait(PATIENCE_S)
    assert where == ["headrace-background"]


def test_a_short_call_does_not_wait_for_a_callback_that_waits_for_the_program(driver) -> None:
    driver.start_background()
    lock, inside = threading.Lock(), threading.Event()
    called: list[str] = []

    def callback() -> None:
        inside.set()
        with lock:
            called.append(threading.current_thread().name)

    def enter() -> None:
        with driver.enter():
            pass

    with lock:
        with driver.enter() as engine:
            engine.at(engine.now_ms + 5, lambda: engine.callbacks.extend((callback, callback)))
        assert inside.wait(PATIENCE_S)
        thread, _ = in_thread(enter)
        thread.join(2)
        assert not thread.is_alive()
    assert ask(driver) == ["t"]
    assert called == ["headrace-background"] * 2


# The program's code


def test_code_of_the_program_runs_where_the_program_called_and_may_call_again(driver) -> None:
    def flow():
        topics = yield Invoke(ask, (driver,))
        thread = yield Invoke(threading.get_ident)
        return topics, thread

    assert driver.run(flow()) == (["t"], threading.get_ident())


def test_an_exception_of_the_programs_code_is_raised_in_the_flow(driver) -> None:
    def fail() -> None:
        raise KeyError("listener")

    def flow():
        try:
            yield Invoke(fail)
        except KeyError as error:
            return repr(error)

    assert driver.run(flow()) == "KeyError('listener')"


def test_due_work_continues_while_the_programs_code_runs(driver) -> None:
    driver.start_background()
    fired = threading.Event()

    def flow():
        with driver.enter() as engine:
            engine.at(engine.now_ms + 10, fired.set)
        return (yield Invoke(fired.wait, (PATIENCE_S,)))

    assert driver.run(flow())


def test_waiting_for_the_client_from_inside_of_it_is_refused(driver) -> None:
    outcomes: list = []

    def answered(_: object) -> None:
        try:
            ask(driver)
        except RuntimeError as error:
            outcomes.append(str(error))

    with driver.enter() as engine:
        engine.submit(Call(request=MetadataRequest(topics=None)), answered)
    driver.run(waiting_for(outcomes, driver))
    assert "cannot call a method that waits for the client" in outcomes[0]
    assert ask(driver) == ["t"]


def waiting_for(outcomes: list, driver: TcpBlockingDriver):
    while not outcomes:
        yield Wait(driver.engine.now_ms + 5)


# Several threads


def test_a_call_is_served_while_another_thread_waits(driver) -> None:
    changed: list[bool] = []
    thread, outcomes = in_thread(lambda: driver.run(waiting_until(lambda: bool(changed)), 60_000))
    assert [ask(driver) for _ in range(20)] == [["t"]] * 20
    with driver.enter() as engine:
        changed.append(True)
        engine.notify()
    thread.join(PATIENCE_S)
    assert outcomes == ["done"]


def test_threads_that_wait_hand_the_sockets_over(driver, cluster) -> None:
    ask(driver)
    threads = [in_thread(lambda: [ask(driver) for _ in range(30)][-1]) for _ in range(4)]
    for thread, outcomes in threads:
        thread.join(PATIENCE_S)
        assert outcomes == [["t"]]
    assert cluster.brokers[1].accepted == 1


def test_closing_ends_the_calls_of_other_threads_at_once(driver, cluster) -> None:
    ask(driver)
    cluster.faults.append(Fault(ApiKey.METADATA, "silence"))
    asked, asked_outcomes = in_thread(lambda: ask(driver))
    waits, wait_outcomes = in_thread(lambda: driver.run(waiting_until(lambda: False), 60_000))
    cause = TransportError("the cause")

    def pausing():
        yield Sleep(60_000, cause)

    sleeps, sleep_outcomes = in_thread(lambda: driver.run(pausing(), 600_000))
    deadline = time.monotonic() + PATIENCE_S
    while cluster.faults and time.monotonic() < deadline:
        threading.Event().wait(0.001)
    driver.close()
    for thread, outcomes in (
        (asked, asked_outcomes),
        (waits, wait_outcomes),
        (sleeps, sleep_outcomes),
    ):
        thread.join(PATIENCE_S)
        assert [type(outcome) for outcome in outcomes] == [ClosedError]


def test_the_programs_code_may_close_the_client(driver) -> None:
    driver.start_background()

    def flow():
        yield Invoke(driver.close)
        yield Call(request=MetadataRequest(topics=None))

    with pytest.raises(ClosedError):
        driver.run(flow())
    driver.close()


# Names and addresses


def test_a_name_is_looked_up(cluster) -> None:
    opened = open_driver(f"localhost:{cluster.brokers[1].port}")
    try:
        response = opened.run(one_call())
        assert isinstance(response, MetadataResponse)
    finally:
        opened.close()


def one_call():
    return (yield Call(request=MetadataRequest(topics=None)))


def test_an_unknown_host_is_reported_with_its_name(monkeypatch) -> None:
    real = socket.getaddrinfo

    def look_up(host, port, *arguments, **options):
        if options.get("flags", 0) & socket.AI_NUMERICHOST:
            return real(host, port, *arguments, **options)
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    opened = open_driver("no.such.host:1")
    with pytest.raises(TransportError, match=r"no\.such\.host:1: Name or service not known"):
        opened.connect()
    opened.close()


def test_a_silent_name_server_delays_no_call_beyond_its_deadline(monkeypatch) -> None:
    real, released = socket.getaddrinfo, threading.Event()

    def look_up(host, port, *arguments, **options):
        if options.get("flags", 0) & socket.AI_NUMERICHOST:
            return real(host, port, *arguments, **options)
        released.wait(PATIENCE_S)
        raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure")

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    opened = open_driver("slow.example:1", socket_connection_setup_timeout_ms=100)
    try:
        with pytest.raises(TransportError, match=r"slow\.example:1"):
            opened.connect()
        assert not released.is_set()
    finally:
        opened.close()
        released.set()


def test_the_second_address_of_a_name_is_tried_when_the_first_refuses(cluster, monkeypatch) -> None:
    real = socket.getaddrinfo
    port = cluster.brokers[1].port
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        refusing = real("127.0.0.1", unused.getsockname()[1], type=socket.SOCK_STREAM)
        answering = real("127.0.0.1", port, type=socket.SOCK_STREAM)

        def look_up(host, port, *arguments, **options):
            if host != "two.example":
                return real(host, port, *arguments, **options)
            if options.get("flags", 0) & socket.AI_NUMERICHOST:
                raise socket.gaierror(socket.EAI_NONAME, "no number")
            return refusing + answering

        monkeypatch.setattr(socket, "getaddrinfo", look_up)
        opened = open_driver("two.example:1")
        opened.connect()
        opened.close()


def test_an_address_of_a_name_that_is_silent_comes_last_the_next_time(cluster, monkeypatch) -> None:
    real = socket.getaddrinfo
    answering = real("127.0.0.1", cluster.brokers[1].port, type=socket.SOCK_STREAM)
    with socket.socket() as full, contextlib.ExitStack() as fillers:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        for _ in range(4):  # more than it queues, so that the next one to connect gets no answer
            filler = fillers.enter_context(socket.socket())
            filler.settimeout(0)
            filler.connect_ex(full.getsockname())
        silent = real("127.0.0.1", full.getsockname()[1], type=socket.SOCK_STREAM)

        def look_up(host, port, *arguments, **options):
            if options.get("flags", 0) & socket.AI_NUMERICHOST:
                raise socket.gaierror(socket.EAI_NONAME, "no number")
            return silent + answering

        monkeypatch.setattr(socket, "getaddrinfo", look_up)
        opened = open_driver("two.example:1", socket_connection_setup_timeout_ms=100)
        with pytest.raises(TransportError, match=r"cannot connect to two\.example:1: timed out"):
            opened.connect()
        opened.connect()
        opened.close()


@pytest.mark.skipif(not socket.has_ipv6, reason="this Python has no IPv6")
def test_an_ipv6_address_is_named_in_brackets() -> None:
    with socket.socket(socket.AF_INET6) as unused:
        try:
            unused.bind(("::1", 0))
        except OSError:
            pytest.skip("this machine has no IPv6")
        port = unused.getsockname()[1]
        opened = open_driver(f"[::1]:{port}")
        with pytest.raises(
            TransportError, match=rf"cannot connect to \[::1\]:{port}: Connection refused"
        ):
            opened.connect()
        opened.close()
