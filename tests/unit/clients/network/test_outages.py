"""A broker that does not answer is reported soon and once. The end of the outage is reported, too."""

from __future__ import annotations

import logging

from headrace.clients.drivers import common
from headrace.clients.flows.effects import Call
from headrace.clients.network.outages import REPORT_AFTER_MS, REPORT_AGAIN_MS, patience_ms
from headrace.protocol.messages.fetch import FetchRequest
from headrace.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from headrace.protocol.messages.join_group import JoinGroupRequest
from tests.unit.clients.network.test_pool import A, B, FakeSockets


def test_a_broker_that_refuses_connections_is_reported_within_two_seconds_and_once() -> None:
    sockets = FakeSockets(A)
    sockets.refuse.add(A)
    for _ in range(30):  # a client that tries again and again, for 30 s
        sockets.submit()
        sockets.pass_time(1_000)
    [line] = sockets.reports
    assert line.startswith("broker a:1: ")
    assert "Connection refused" in line
    assert sockets.reported_ms[0] - 1_000 <= 2_000
    assert sockets.pool.trouble is not None


def test_a_broker_that_does_not_take_the_connection_is_reported_before_that_is_given_up() -> None:
    sockets = FakeSockets(A)
    sockets.submit()
    sockets.pass_time(2_000)
    assert len(sockets.reports) == 1
    assert "does not answer" in sockets.reports[0]


def test_an_outage_is_reported_each_minute_and_at_its_end() -> None:
    sockets = FakeSockets(A)
    sockets.refuse.add(A)
    for _ in range(70):
        sockets.submit()
        sockets.pass_time(1_000)
    assert len(sockets.reports) == 2
    assert sockets.reported_ms[1] - sockets.reported_ms[0] == REPORT_AGAIN_MS
    sockets.refuse.clear()
    sockets.submit()
    sockets.accept(sockets.opened[-1])
    assert len(sockets.reports) == 3
    assert "answers again" in sockets.reports[2]
    assert sockets.pool.trouble is None


def test_a_short_failure_is_not_reported() -> None:
    sockets = FakeSockets(A)
    sockets.refuse.add(A)
    sockets.submit()
    sockets.pass_time(REPORT_AFTER_MS - 100)
    sockets.refuse.clear()
    sockets.submit()
    sockets.accept(sockets.opened[-1])
    sockets.answer(sockets.opened[-1], HeartbeatResponse())
    sockets.pass_time(10_000)
    assert sockets.reports == []


def test_an_unreachable_address_is_not_reported_until_it_is_tried_again() -> None:
    sockets = FakeSockets(A, B)
    sockets.refuse.add(A)
    sockets.submit()
    sockets.accept(sockets.opened[-1])
    sockets.answer(sockets.opened[-1], HeartbeatResponse())
    sockets.pass_time(5_000)
    assert sockets.reports == []
    sockets.know(1, A)
    for _ in range(3):
        sockets.submit(node=1)
        sockets.pass_time(1_000)
    assert len(sockets.reports) == 1
    assert sockets.pool.trouble is None, "others answer"


def test_a_silent_connection_is_reported_until_data_arrives() -> None:
    sockets = FakeSockets(A)
    sockets.submit()
    link = sockets.opened[-1]
    sockets.accept(link)
    sockets.pass_time(2_000)
    assert len(sockets.reports) == 1
    assert sockets.pool.trouble is not None
    sockets.answer(link, HeartbeatResponse())
    assert "answers again" in sockets.reports[-1]
    assert sockets.pool.trouble is None


def test_a_connection_on_which_nothing_is_asked_may_be_silent() -> None:
    sockets = FakeSockets(A)
    sockets.submit()
    link = sockets.opened[-1]
    sockets.accept(link)
    sockets.answer(link, HeartbeatResponse())
    sockets.pass_time(600_000)
    sockets.submit()
    sockets.pass_time(1_000)
    assert sockets.reports == []


def test_the_time_until_a_broker_counts_as_silent_depends_on_the_request() -> None:
    assert patience_ms(Call(request=HeartbeatRequest())) == REPORT_AFTER_MS
    assert patience_ms(Call(request=FetchRequest(max_wait_ms=500))) == REPORT_AFTER_MS + 500
    assert patience_ms(Call(request=JoinGroupRequest())) is None


def test_clients_that_find_out_together_are_one_line(caplog) -> None:
    common._reported.clear()
    with caplog.at_level(logging.WARNING, logger="headrace.clients"):
        for tenths in range(3):
            common.report_outage(f"broker a:1: refused; it has been away for 1.{tenths} s")
        common.report_outage("broker b:1: refused; it has been away for 1.5 s")
    assert [record.levelname for record in caplog.records] == ["WARNING", "WARNING"]


def test_a_broker_that_left_the_cluster_is_not_reported_for_ever() -> None:
    sockets = FakeSockets(B)
    sockets.refuse.add(A)
    sockets.know(1, A)
    for _ in range(3):
        sockets.submit(node=1)
        sockets.pass_time(1_000)
    assert len(sockets.reports) == 1
    del sockets.state.metadata.brokers[1]
    sockets.submit()
    sockets.accept(sockets.opened[-1])
    sockets.answer(sockets.opened[-1], HeartbeatResponse())
    sockets.pass_time(10 * REPORT_AGAIN_MS)
    assert len(sockets.reports) == 1, "the client no longer tries the broker"
    # It is the reason for nothing, either, when the other one fails.
    sockets.pool.lost(sockets.opened[-1], "closed the connection")
    sockets.refuse.add(B)
    sockets.know(2, B)
    for _ in range(3):
        sockets.submit(node=2)
        sockets.pass_time(1_000)
    assert "b:2" in (sockets.pool.trouble or "")
    # As soon as it is tried again, it is reported again.
    sockets.know(1, A)
    sockets.submit(node=1)
    sockets.pass_time(1_000)
    assert "broker a:1" in sockets.reports[-1]


def test_a_broker_that_goes_away_again_at_once_is_reported_again(caplog) -> None:
    common._reported.clear()
    away, back = (
        "broker a:1: refused; it has been away for 1.5 s",
        "broker a:1: answers again, after 3.0 s",
    )
    with caplog.at_level(logging.WARNING, logger="headrace.clients"):
        for line in (away, away, back, back, away, away):
            common.report_outage(line)
    assert [record.getMessage() for record in caplog.records] == [away, back, away]
