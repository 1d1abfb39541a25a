"""The engine runs flows side by side, over a transport that the test answers by hand."""

from __future__ import annotations

import pytest

from headrace.clients.engine import Engine, TaskCancelled
from headrace.clients.flows.effects import Call, ClientState, Invoke, Sleep, Wait
from headrace.errors import InternalError, TransportError
from headrace.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse

CALL = Call(request=HeartbeatRequest(group_id="g"), node=1)


class HandTransport:
    lost_connections = 0

    def __init__(self, *, at_once=None):
        self.sent = []
        self._at_once = at_once

    def submit(self, call, deadline_ms, on_done):
        self.sent.append((call, deadline_ms, on_done))
        if self._at_once is not None:
            on_done(self._at_once)

    def answer(self, outcome, index=0):
        self.sent.pop(index)[2](outcome)


def make_engine(transport=None, now_ms=1000):
    transport = transport or HandTransport()
    engine = Engine(
        ClientState(), transport, now_ms=now_ms, request_timeout_ms=300, jitter=lambda: 1.0
    )
    return engine, transport


def test_a_call_is_answered_and_an_error_is_thrown():
    engine, transport = make_engine()

    def flow():
        first = yield CALL
        try:
            yield CALL
        except TransportError as error:
            return first, str(error)

    task = engine.spawn(flow())
    response = HeartbeatResponse()
    transport.answer(response)
    assert not task.done
    transport.answer(TransportError("gone"))
    assert task.result() == (response, "gone")


def test_outcomes_of_a_tuple_keep_the_order_of_its_calls():
    engine, transport = make_engine()

    def flow():
        return (yield (CALL, CALL))

    task = engine.spawn(flow())
    error, response = TransportError("gone"), HeartbeatResponse()
    transport.answer(error, 1)
    assert not task.done
    transport.answer(response, 0)
    assert task.result() == (response, error)


def test_a_tuple_without_calls_is_answered_at_once():
    engine, _ = make_engine()

    def flow():
        return (yield ())

    assert engine.spawn(flow()).result() == ()


@pytest.mark.slow
def test_answers_at_once_do_not_nest():
    engine, _ = make_engine(HandTransport(at_once=HeartbeatResponse()))

    def flow():
        for _ in range(5_000):  # far deeper than the stack could be
            yield CALL
        return "done"

    assert engine.spawn(flow()).result() == "done"


def test_a_sleep_ends_by_time_and_raises_its_cause_when_it_does_not_fit():
    engine, _ = make_engine()

    def flow():
        yield Sleep(100, TransportError("why"))
        yield Sleep(100, TransportError("too long"))

    task = engine.spawn(flow(), timeout_ms=150)
    assert engine.next_deadline_ms == 1100
    engine.advance(1099)
    assert not task.done
    engine.advance(1100)
    with pytest.raises(TransportError, match="too long"):
        task.result()


def test_a_wait_ends_by_notice_or_by_time_and_leaves_one_timer():
    engine, _ = make_engine()
    seen = []

    def flow():
        while engine.now_ms < 1500:
            yield Wait(1500)
            seen.append(engine.now_ms)

    task = engine.spawn(flow())
    for now_ms in range(1001, 1101):
        engine.advance(now_ms)
        engine.notify()
    assert len(seen) == 100
    assert len(engine._timers) == 1
    engine.advance(1500)
    assert task.done
    assert seen[-1] == 1500


def test_a_timer_of_an_earlier_wait_does_not_end_a_later_pause():
    engine, _ = make_engine()

    def flow():
        yield Wait(1100)
        yield Wait(1300)
        return engine.now_ms

    task = engine.spawn(flow())
    engine.notify()
    engine.advance(1100)
    assert not task.done
    engine.advance(1300)
    assert task.result() == 1300


def test_a_call_gets_the_lesser_of_its_own_time_and_the_tasks():
    engine, transport = make_engine()

    def flow():
        yield Call(request=CALL.request, node=1, timeout_ms=50)
        yield CALL
        yield CALL

    engine.spawn(flow(), timeout_ms=100)
    deadlines = []
    for now_ms in (1000, 1100):
        engine.advance(now_ms)
        if transport.sent:
            deadlines.append(transport.sent[0][1])
            transport.answer(HeartbeatResponse())
    assert deadlines == [1050, 1100]  # for the third no time was left


def test_the_programs_code_is_asked_for_and_answered():
    engine, _ = make_engine()
    asked: list[object] = []

    def flow():
        total = yield Invoke(sum, ((1, 2),))
        try:
            yield Invoke(int, ("x",))
        except ValueError:
            return total

    task = engine.spawn(flow(), on_invoke=asked.append)
    invocation = task.invocation
    assert asked == [task]
    engine.resume(task, invocation.function(*invocation.arguments))
    engine.resume(task, ValueError("no number"))
    assert task.result() == 3


def test_a_background_task_must_not_run_the_programs_code():
    engine, _ = make_engine()

    def flow():
        yield Invoke(print)

    with pytest.raises(InternalError, match="cannot run the program's code"):
        engine.spawn(flow()).result()


def test_a_cancelled_task_ignores_late_responses():
    engine, transport = make_engine()
    closed = []

    def flow():
        try:
            yield CALL
        finally:
            closed.append(True)

    task = engine.spawn(flow())
    engine.cancel(task)
    transport.answer(HeartbeatResponse())
    assert closed == [True]
    with pytest.raises(TaskCancelled):
        task.result()


def test_a_failed_task_does_not_affect_other_tasks():
    engine, transport = make_engine()

    def broken():
        yield CALL
        raise KeyError("bug")

    def sound():
        yield CALL
        return "fine"

    first, second = engine.spawn(broken()), engine.spawn(sound())
    transport.answer(HeartbeatResponse())
    transport.answer(HeartbeatResponse())
    assert isinstance(first.outcome, InternalError)
    assert isinstance(first.outcome.__cause__, KeyError)
    assert second.result() == "fine"


def test_timers_are_called_in_order_of_time_and_not_when_cancelled():
    engine, _ = make_engine()
    called = []
    engine.at(1200, lambda: called.append("late"))
    engine.at(1100, lambda: called.append("early"))
    engine.at(1150, lambda: called.append("never")).cancel()
    engine.advance(1199)
    assert called == ["early"]
    assert engine.next_deadline_ms == 1200
    engine.advance(1300)
    assert called == ["early", "late"]
    assert engine.next_deadline_ms is None


def test_ended_tasks_leave_no_timers():
    engine, _ = make_engine()

    def flow():
        yield Wait(engine.now_ms + 3_600_000)

    for _ in range(1000):
        engine.spawn(flow())
        engine.notify()
        engine.at(engine.now_ms + 30_000, list).cancel()
    kept = engine.at(engine.now_ms + 60_000, list)
    assert engine.next_deadline_ms == kept.when_ms, "no task waits"
    assert len(engine._timers) <= 200
