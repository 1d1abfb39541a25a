"""docs/guides/kinesis-reading.md has the settings and defaults of the code."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

from headrace.kinesis.reading.settings import ReadSettings

PAGE = (Path(__file__).parents[2] / "docs/guides/kinesis-reading.md").read_text()


def test_the_page_has_the_settings_and_defaults_of_the_code() -> None:
    rows = dict(re.findall(r"^\| `(\w+)` \| (\w+) \|", PAGE, re.MULTILINE))
    assert rows == {field.name: str(field.default) for field in fields(ReadSettings)}
