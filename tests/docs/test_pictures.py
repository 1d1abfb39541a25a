"""The pictures of the README are what their scripts make of the parts and of real commands."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator

from tools import draw_parts, record_terminal


def lines(picture: str) -> Iterator[str]:
    """Yield the lines of text in a recording, without numbers: offsets and partitions may differ."""
    for text in re.findall(r"<text[^>]*>(.*?)</text>", picture):
        yield re.sub(r"\d+", "0", html.unescape(re.sub(r"<[^>]+>", "", text)))


def test_the_picture_of_the_parts_is_up_to_date() -> None:
    assert draw_parts.TARGET.read_text() == draw_parts.picture()


def test_the_recording_is_up_to_date() -> None:
    recorded = list(lines(record_terminal.TARGET.read_text()))
    assert list(lines(record_terminal.picture(record_terminal.record()))) == recorded
    assert [line for line in recorded if line.startswith("$ ")][
        -1
    ] == "$ headrace dlq redrive orders"
