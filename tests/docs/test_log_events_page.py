"""docs/reference/log-events.md lists every event that a broker logs, with its level."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "reference" / "log-events.md").read_text()
SOURCES = ("broker", "core", "server", "metadata_stores", "storage", "embedded", "cli")
CALL = re.compile(r'\.(info|warning|error)\(\s*((?:"[a-z0-9_]+"(?: if [^"(]+ else )?)+)')
ROW = re.compile(r"^\| ((?:`[a-z0-9_]+`(?:, )?)+) \| (info|warning|error) \|", re.MULTILINE)
NAMED_ELSEWHERE = {
    ("audit_changed", "info"),
    ("audit_offsets_set", "info"),
    ("crl_expires", "warning"),
    ("crl_expired", "warning"),
    ("topic_created", "info"),
    ("topic_deleted", "info"),
}
"""Events whose names are not written in the call that logs them."""


def logged() -> set[tuple[str, str]]:
    found = set(NAMED_ELSEWHERE)
    for folder in SOURCES:
        for path in (ROOT / "src" / "headrace" / folder).rglob("*.py"):
            for level, names in CALL.findall(path.read_text()):
                found |= {(name, level) for name in re.findall(r'"(\w+_\w+)"', names)}
    return found


def listed() -> list[tuple[str, str]]:
    return [
        (name, level)
        for names, level in ROW.findall(PAGE)
        for name in re.findall(r"`(\w+)`", names)
    ]


def test_the_page_lists_every_event_once_with_its_level() -> None:
    assert sorted(listed()) == sorted(logged())


def test_the_source_contains_the_listed_names() -> None:
    source = "".join(
        path.read_text()
        for folder in ("broker/access", "broker/partitions", "server")
        for path in (ROOT / "src" / "headrace" / folder).rglob("*.py")
    )
    assert all(f'"{name}"' in source for name, _ in NAMED_ELSEWHERE)
