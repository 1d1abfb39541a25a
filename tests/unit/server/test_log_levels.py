"""The loggers of a server process: their levels can be changed while it runs, except that of the audit log."""

from __future__ import annotations

import io
import logging
from collections.abc import Iterator

import pytest

from headrace.server.log import LoggingJournal, LogLevels, configure_logging

NAMES = ("root", "headrace", "headrace.audit")


@pytest.fixture
def lines() -> Iterator[io.StringIO]:
    root, levels = logging.getLogger(), {name: logging.getLogger(name).level for name in NAMES}
    handlers, raises = root.handlers[:], logging.raiseExceptions
    stream = io.StringIO()
    configure_logging("info", "text", stream)
    try:
        yield stream
    finally:
        root.handlers[:], logging.raiseExceptions = handlers, raises
        for name, level in levels.items():
            logging.getLogger(name).setLevel(level)


def levels(found: LogLevels) -> list[tuple[str, str, bool]]:
    return [(name, logger.level, logger.is_fixed) for name, logger in found.all().items()]


@pytest.mark.parametrize("name", ["root", "headrace"])
def test_a_level_applies_to_the_broker_log_but_not_to_the_audit_log(
    lines: io.StringIO, name: str
) -> None:
    found, journal = LogLevels(), LoggingJournal()
    for level in ("WARN", "FATAL", None if name == "headrace" else "INFO"):
        found.change(name, level)
        journal.info("told", level=level)
        journal.warning("warned", level=level)
        journal.info("audit_changed", level=level)
    written = [tuple(line.split()[1:]) for line in lines.getvalue().splitlines()]
    last = f"level={None if name == 'headrace' else 'INFO'}"
    assert written == [
        ("WARNING", "warned", "level=WARN"),
        ("INFO", "audit_changed", "level=WARN"),
        ("INFO", "audit_changed", "level=FATAL"),
        ("INFO", "told", last),
        ("WARNING", "warned", last),
        ("INFO", "audit_changed", last),
    ]


@pytest.mark.usefixtures("lines")
@pytest.mark.parametrize("level", ["FATAL", "ERROR", "WARN", "INFO", "DEBUG", "TRACE"])
def test_levels_are_shown_as_kafka_names_them(level: str) -> None:
    found = LogLevels()
    assert levels(found) == [
        ("root", "INFO", False),
        ("headrace", "INFO", False),
        ("headrace.audit", "INFO", True),
    ]
    found.change("root", level)
    assert levels(found) == [
        ("root", level, False),
        ("headrace", level, False),
        ("headrace.audit", "INFO", True),
    ]


@pytest.mark.usefixtures("lines")
def test_a_level_between_two_is_shown_as_the_nearest() -> None:
    found = LogLevels()
    logging.getLogger().setLevel(24)
    assert found.all()["root"].level == "INFO"
