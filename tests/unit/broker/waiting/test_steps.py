from __future__ import annotations

from collections.abc import Generator
from typing import Any

import pytest

from headrace.broker.context import CloseConnection
from headrace.broker.session import Session
from headrace.broker.waiting.purgatory import Purgatory
from headrace.broker.waiting.steps import STEP_COST, Steps, Work, value_of
from headrace.deferred import Deferred


def work(name: str, costs: list[int], done: list[str]) -> Generator[int, None, str]:
    for cost in costs:
        done.append(name)
        yield cost
    return name


def test_work_of_one_step_is_answered_at_once() -> None:
    steps = Steps(Purgatory())
    done: list[str] = []
    assert steps.run(work("a", [1, 2, STEP_COST - 4], done)) == "a"
    assert steps.next_deadline_ms is None


def test_more_work_is_done_by_ticks_a_step_at_a_time() -> None:
    purgatory = Purgatory()
    steps = Steps(purgatory)
    done: list[str] = []
    answer = steps.run(work("a", [STEP_COST // 2] * 5, done))
    assert isinstance(answer, Deferred)
    assert (len(done), steps.next_deadline_ms) == (2, 0)
    steps.tick()
    assert len(done) == 4
    steps.tick()
    assert not answer.done  # delivered when the broker settles
    purgatory.deliver()
    assert answer.value == "a"
    assert steps.next_deadline_ms is None


def test_postponed_work_begins_with_a_tick() -> None:
    purgatory = Purgatory()
    steps = Steps(purgatory)
    session = Session()
    done: list[str] = []
    answer = steps.run(work("a", [1, 2], done), session, postponed=True)
    assert isinstance(answer, Deferred)
    assert (done, session.busy, steps.next_deadline_ms) == ([], True, 0)
    steps.tick()
    purgatory.deliver()
    assert (answer.value, session.busy, steps.next_deadline_ms) == ("a", False, None)


def test_requests_in_steps_take_turns() -> None:
    purgatory = Purgatory()
    steps = Steps(purgatory)
    done: list[str] = []
    first = steps.run(work("a", [STEP_COST] * 3, done))
    second = steps.run(work("b", [STEP_COST] * 2, done))
    assert isinstance(first, Deferred)
    assert isinstance(second, Deferred)
    while steps:
        steps.tick()
        purgatory.deliver()
    assert "".join(done) == "ababa"
    assert (first.value, second.value) == ("a", "b")


def test_a_tick_does_the_work_of_one_step_for_all_requests() -> None:
    steps = Steps(Purgatory())
    done: list[str] = []
    for number in range(50):
        steps.run(work(str(number), [STEP_COST] * 9, done))
    before = len(done)
    steps.tick()
    assert len(done) == before + 1


def test_the_first_steps_of_many_are_small() -> None:
    steps = Steps(Purgatory())
    done: list[str] = []
    small = STEP_COST // 64
    for number in range(100):
        steps.run(work(str(number), [small] * 640, done))
    assert len(done) * small <= STEP_COST + 99 * STEP_COST // 16


class Runner:
    def __init__(self) -> None:
        self.purgatory = Purgatory()
        self.steps = Steps(self.purgatory)
        self.session = Session()

    def start(self, work: Work[Any]) -> Any:
        return self.steps.run(work, self.session)

    def advance(self) -> None:
        self.steps.tick()
        self.purgatory.deliver()


def test_a_session_is_busy_until_the_last_step() -> None:
    runner = Runner()
    done: list[str] = []
    idle: list[int] = []
    runner.session.on_idle = lambda: idle.append(len(done))
    runner.start(work("a", [STEP_COST] * 2, done))
    session = runner.session
    assert session.busy
    runner.advance()
    assert session.busy
    assert idle == []
    runner.advance()
    assert idle == [2]
    assert not session.busy


def test_work_may_end_with_an_answer_that_is_not_ready() -> None:
    runner = Runner()
    last: Deferred[str] = Deferred()

    def waits() -> Work[Any]:
        yield STEP_COST
        return last

    answer = runner.start(waits())
    runner.advance()
    assert not answer.done
    assert not runner.session.busy
    last.resolve("durable")
    assert answer.value == "durable"


def test_only_an_exception_of_a_later_step_is_returned_as_the_result() -> None:
    runner = Runner()

    def fails(pieces: int) -> Work[Any]:
        for _ in range(pieces):
            yield STEP_COST
        raise CloseConnection("acks=0")

    with pytest.raises(CloseConnection):
        runner.start(fails(0))
    answer = runner.start(fails(1))
    runner.advance()
    assert isinstance(answer.value, CloseConnection)
    assert not runner.steps
    assert not runner.session.busy


def test_work_resumes_with_the_value_it_waited_for() -> None:
    runner = Runner()
    stored: Deferred[str] = Deferred()
    at_hand: Deferred[str] = Deferred()
    at_hand.resolve("and this")

    def waits() -> Work[Any]:
        first = yield stored
        return [first, (yield at_hand), (yield from value_of("none needed"))]

    answer = runner.start(waits())
    assert runner.session.busy
    assert not runner.steps  # nothing to do until then
    stored.resolve("this")
    runner.purgatory.deliver()
    assert answer.value == ["this", "and this", "none needed"]


@pytest.mark.parametrize("finishes", [False, True])
def test_cancelled_work_ends_unless_it_changes_stored_state(*, finishes: bool) -> None:
    runner = Runner()
    done: list[str] = []
    steps = work("a", [STEP_COST] * 3, done)
    answer: Any = runner.steps.run(steps, runner.session, finishes=finishes)
    answer.cancel()
    while runner.steps:
        runner.advance()
    assert len(done) == (3 if finishes else 1)
    assert not runner.session.busy


def test_a_value_for_many_requests_causes_no_more_work_than_one_step() -> None:
    purgatory = Purgatory()
    steps = Steps(purgatory)
    stored: Deferred[None] = Deferred()
    done: list[str] = []

    def waits() -> Work[str]:
        yield stored
        return (yield from work("a", [STEP_COST // 10] * 5, done))

    answers: list[Any] = [steps.run(waits(), Session()) for _ in range(100)]
    steps.begin_round()
    stored.resolve(None)
    assert 10 <= len(done) <= 15
    while steps:
        before = len(done)
        steps.tick()
        assert len(done) - before <= 15
        purgatory.deliver()
    assert [answer.value for answer in answers] == ["a"] * 100
