"""Interrupt a busy client at random moments by signals whose handlers raise.

    interrupted.py ADDRESS WHERE WHAT ROUNDS SEED

WHERE is tcp or memory. After each interruption the same client works on, and at the end nothing is lost or doubled.
The last line says how many interruptions there were.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import headrace
from headrace.types import TopicPartition

ADDRESS, WHERE, WHAT, ROUNDS, SEED = sys.argv[1:]
TOPIC = f"interrupted-{os.getpid()}"
HERE = TopicPartition(TOPIC, 0)
PROMPT_S = 5.0
"""The seconds in which a call ends after an interruption, on a busy machine."""
rng = random.Random(int(SEED))


class TimeIsUpError(Exception):
    """The exception that the handler of a signal raises, as a test's time-out does."""


def by_default(*_: object) -> None:
    raise KeyboardInterrupt


def by_exit(*_: object) -> None:
    sys.exit(3)


def by_error(*_: object) -> None:
    raise TimeIsUpError


HANDLERS: dict[signal.Signals, tuple[Any, type[BaseException]]] = {
    signal.SIGINT: (signal.default_int_handler, KeyboardInterrupt),
    signal.SIGTERM: (by_exit, SystemExit),
    signal.SIGALRM: (by_error, TimeIsUpError),
    signal.SIGUSR1: (by_default, KeyboardInterrupt),
}


class Interrupter:
    """A thread that signals the process once for each `arm`, a random time later."""

    def __init__(self) -> None:
        self._armed = threading.Semaphore(0)
        self._disarmed = threading.Semaphore(0)
        self._number = signal.SIGINT
        self.sent_at = 0.0
        self.count = 0
        threading.Thread(target=self._work, daemon=True).start()

    def _work(self) -> None:
        while self._armed.acquire():
            time.sleep(rng.choice((rng.uniform(0, 0.002), rng.uniform(0, 0.03))))
            self.sent_at = time.monotonic()
            os.kill(os.getpid(), self._number)
            self._disarmed.release()

    def interrupt(self, busy: Callable[[], object]) -> None:
        """Call `busy` until the signal interrupts it; then check that it was that, and soon."""
        self._number = rng.choice(list(HANDLERS))
        expected = HANDLERS[self._number][1]
        caught: BaseException | None = None
        try:
            self._armed.release()
            while True:
                busy()
        except BaseException as error:  # noqa: BLE001 - it is compared below
            caught = error
        if type(caught) is not expected:
            raise AssertionError(f"{expected.__name__} became {caught!r}") from caught
        late_s = time.monotonic() - self.sent_at
        assert late_s < PROMPT_S, f"interrupted {late_s:.1f} s late"
        assert self._disarmed.acquire(timeout=10)
        self.count += 1


def prompt(what: str, call: Callable[[], Any]) -> Any:
    began = time.monotonic()
    result = call()
    took_s = time.monotonic() - began
    assert took_s < PROMPT_S, f"{what} took {took_s:.1f} s"
    return result


def values_of(target: Any, **properties: Any) -> list[int]:
    with headrace.Consumer(target, enable_auto_commit=False, **properties) as consumer:
        consumer.assign({HERE: 0})
        end = consumer.end_offsets([HERE])[HERE]
        values: list[int] = []
        while consumer.position(HERE) < end:
            values += [int(record.value) for record in consumer.poll(1)]
    return values


def producer(target: Any, interrupter: Interrupter) -> None:
    sent: dict[int, Any] = {}
    number = 0

    def busy() -> None:
        nonlocal number
        number += 1
        sent[number] = client.send(TOPIC, b"%d" % number, on_delivery=told.append)
        if number % 50 == 0:
            client.flush()

    told: list[Any] = []
    client = headrace.Producer(target, linger_ms=rng.choice((0, 5)))
    for round_number in range(int(ROUNDS)):
        interrupter.interrupt(busy)
        if round_number % 3:
            prompt("flush", client.flush)
        if round_number % 10 == 9:
            prompt("close", client.close)
            client = headrace.Producer(target, linger_ms=rng.choice((0, 5)))
    prompt("close", client.close)
    assert all(one.exception() is None for one in sent.values())
    values = values_of(target)
    assert len(values) == len(set(values)), "no record is there twice"
    assert set(sent) <= set(values) <= set(range(number + 1)), "no record that was taken is lost"
    assert len(told) == len(values), f"{len(told)} callbacks for {len(values)} records"


def consumer(target: Any, interrupter: Interrupter) -> None:
    count = 20_000
    with headrace.Producer(target) as filling:
        filling.send_many(TOPIC, [b"%d" % index for index in range(count)])
    got: list[int] = []
    client = headrace.Consumer(target, group=TOPIC, auto_offset_reset="earliest")
    client.subscribe([TOPIC])
    by_iteration = False
    lost_on_return = 0

    def busy() -> None:
        if by_iteration:
            got.append(int(next(client).value))
        else:
            got.extend(int(record.value) for record in client.poll(0.5, 7))
        if len(got) >= count:
            got.clear()
            client.seek_to_beginning([HERE])

    for _ in range(int(ROUNDS)):
        interrupter.interrupt(busy)
        by_iteration = rng.random() < 0.5
        # Python itself may interrupt between the return of a call and what the program does with the result.
        position = prompt("position", lambda: client.positions().get(HERE))
        if position is not None and position != len(got) % count:
            lost_on_return += 1
            got.clear()
            client.seek_to_beginning([HERE])
        assert got == list(range(len(got))), "no record is missing, none comes twice"
    assert lost_on_return <= 1 + int(ROUNDS) // 10, lost_on_return
    prompt("close", client.close)
    with headrace.Admin(target) as admin:
        assert not admin.describe_group(TOPIC).members, "the member has left"


def admin(target: Any, interrupter: Interrupter) -> None:
    client = headrace.Admin(target)

    def busy() -> None:
        client.topics()
        client.configs(TOPIC)

    for _ in range(int(ROUNDS)):
        interrupter.interrupt(busy)
        assert TOPIC in prompt("topics", client.topics)
    prompt("close", client.close)


def transactions(target: Any, interrupter: Interrupter) -> None:
    committed: list[list[int]] = []
    numbers = iter(range(1 << 60))
    client = headrace.Producer(target, transactional_id=TOPIC)

    def busy() -> None:
        client.begin_transaction()
        mine = [next(numbers) for _ in range(rng.randrange(1, 30))]
        for number in mine:
            client.send(TOPIC, b"%d" % number)
        client.commit_transaction()
        committed.append(mine)

    for _ in range(int(ROUNDS)):
        interrupter.interrupt(busy)
        if client.in_transaction:
            with suppress(headrace.HeadraceError):
                prompt("abort", client.abort_transaction)
        if client.in_transaction:
            prompt("close", client.close)
            client = headrace.Producer(target, transactional_id=TOPIC)
    prompt("close", client.close)
    values = values_of(target, isolation_level="read_committed")
    assert len(values) == len(set(values))
    assert {number for mine in committed for number in mine} <= set(values)


def main() -> None:
    for number, (handler, _) in HANDLERS.items():
        signal.signal(number, handler)
    target: Any = ADDRESS if WHERE == "tcp" else headrace.Broker()
    with headrace.Admin(target) as creating:
        creating.create_topic(TOPIC, 1)
    interrupter = Interrupter()
    {"producer": producer, "consumer": consumer, "admin": admin, "transactions": transactions}[
        WHAT
    ](target, interrupter)
    for number, (handler, _) in HANDLERS.items():
        assert signal.getsignal(number) is handler, f"the program has its handler of {number} back"
    if WHERE == "memory":
        target.close()
    assert threading.active_count() <= 2, threading.enumerate()
    print(f"{interrupter.count} interruptions")


if __name__ == "__main__":
    main()
