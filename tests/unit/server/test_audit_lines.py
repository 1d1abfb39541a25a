"""Lines of the audit log: their limits, and the logger of their own."""

from __future__ import annotations

import logging

import pytest

from headrace.server.log import _WINDOWS_LIMIT, LoggingJournal, RateLimited, describe


class Lines:
    def __init__(self) -> None:
        self.lines: list[tuple[str, dict[str, object]]] = []

    def info(self, event: str, **fields: object) -> None:
        self.lines.append((event, fields))

    warning = error = info


class Clock:
    now_ms = 0

    def __call__(self) -> int:
        return self.now_ms


@pytest.fixture
def lines() -> Lines:
    return Lines()


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_changes_are_never_left_out(lines: Lines, clock: Clock) -> None:
    journal = RateLimited(lines, clock, burst=2)
    for number in range(500):
        journal.info(
            "audit_changed", principal="User:admin", host="::1", what="topic_created", topic=number
        )
    assert [fields["topic"] for _, fields in lines.lines] == list(range(500))


def test_denials_are_bounded_for_each_principal_and_host(lines: Lines, clock: Clock) -> None:
    journal = RateLimited(lines, clock, burst=2, window_ms=1000)
    for _ in range(100):
        journal.warning("audit_authorization_denied", principal="User:a", host="10.0.0.1")
    journal.warning("audit_authorization_denied", principal="User:b", host="10.0.0.1")
    journal.warning("audit_authorization_denied", principal="User:a", host="10.0.0.2")
    assert [(fields["principal"], fields["host"]) for _, fields in lines.lines] == [
        ("User:a", "10.0.0.1"),
        ("User:a", "10.0.0.1"),
        ("User:b", "10.0.0.1"),
        ("User:a", "10.0.0.2"),
    ]
    lines.lines.clear()
    clock.now_ms = 1000
    journal.report()
    assert lines.lines == [
        (
            "audit_lines_suppressed",
            {
                "of": "audit_authorization_denied",
                "count": 98,
                "principal": "User:a",
                "host": "10.0.0.1",
            },
        )
    ]


def test_many_addresses_do_not_take_memory_for_ever(lines: Lines, clock: Clock) -> None:
    journal = RateLimited(lines, clock, burst=1)
    for number in range(_WINDOWS_LIMIT + 5000):
        journal.warning("audit_authentication_failed", principal="User:ANONYMOUS", host=str(number))
    assert len(journal._windows) == _WINDOWS_LIMIT + 1
    assert len(lines.lines) == _WINDOWS_LIMIT + 1
    clock.now_ms = 10_000
    journal.report()
    assert lines.lines[-1] == (
        "audit_lines_suppressed",
        {"of": "audit_authentication_failed", "count": 4999, "principal": "many", "host": "many"},
    )
    assert not journal._windows


def test_the_audit_log_has_a_logger_of_its_own(caplog: pytest.LogCaptureFixture) -> None:
    journal = LoggingJournal()
    with caplog.at_level(logging.INFO, logger="headrace"):
        journal.info("audit_changed", what="topic_created")
        journal.info("topic_created")
    assert [(record.name, record.message) for record in caplog.records] == [
        ("headrace.audit", "audit_changed"),
        ("headrace", "topic_created"),
    ]


def test_an_error_is_described_without_the_bytes_that_it_holds() -> None:
    with pytest.raises(UnicodeDecodeError) as raised:
        b"hunter2\xff".decode()
    assert "hunter2" in repr(raised.value)
    assert "hunter2" not in describe(raised.value)
    assert describe(raised.value).startswith("UnicodeDecodeError: ")
    assert describe(None) == "nothing"
