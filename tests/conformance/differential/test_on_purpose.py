"""The list of differences: that it is what users read, and that it speaks of scenarios that exist."""

from __future__ import annotations

import re
from pathlib import Path

from tests.conformance.differential.on_purpose import DIFFERENCES, DOCUMENT, document


def test_the_document_is_up_to_date() -> None:
    text = DOCUMENT.read_text()
    assert text == document(text), "run python -m tests.conformance.differential.on_purpose"


def test_every_difference_names_scenarios_that_exist() -> None:
    source = "".join(path.read_text() for path in Path(__file__).parent.glob("test_*.py"))
    names = set(re.findall(r"@scenarios\ndef (\w+)\(peer", source))
    assert len(names) > 50
    for difference in DIFFERENCES:
        for place in difference.shown:
            pattern = re.compile(place.scenario.replace("*", ".*"))
            assert any(pattern.fullmatch(name) for name in names), place.scenario
