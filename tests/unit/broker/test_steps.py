from __future__ import annotations

from collections.abc import Generator

from headrace.broker.delayed import Purgatory
from headrace.broker.steps import STEP_COST, Steps
from headrace.core.deferred import Deferred


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
    assert not answer.done  # it is delivered when the broker has come to rest
    purgatory.deliver()
    assert answer.value == "a"
    assert steps.next_deadline_ms is None


def test_those_who_wait_take_turns() -> None:
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


def test_one_tick_does_no_more_than_one_step_for_all() -> None:
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
