"""The list of differences: that it is what users read, and that it speaks of scenarios that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from headrace.protocol.messages.leave_group import LeaveGroupRequest
from tests.conformance.differential.normal import Symbols, normal
from tests.conformance.differential.on_purpose import DIFFERENCES, DOCUMENT, document
from tests.conformance.differential.pair import check
from tests.conformance.differential.peer import CLOSED, Step
from tests.conformance.differential.test_transactions import (
    PROTOCOLS,
    SEQUENCES,
    scenario_name,
)


def test_the_document_is_up_to_date() -> None:
    text = DOCUMENT.read_text()
    assert text == document(text), "run python -m tests.conformance.differential.on_purpose"


def test_every_difference_names_scenarios_that_exist() -> None:
    source = "".join(path.read_text() for path in Path(__file__).parent.glob("test_*.py"))
    names = set(re.findall(r"@scenarios\ndef (\w+)\(peer", source))
    assert len(names) > 50
    names |= {scenario_name(sequence, protocol) for sequence in SEQUENCES for protocol in PROTOCOLS}
    for difference in DIFFERENCES:
        for place in difference.shown:
            pattern = re.compile(place.scenario.replace("*", ".*"))
            assert any(pattern.fullmatch(name) for name in names), place.scenario


def step(**fields: object) -> Step:
    return Step("asks v3", {"topics": [{"name": "b"}, {"name": "a", "partitions": [fields]}]})


@pytest.mark.parametrize(
    ("kafka", "headrace", "found"),
    [
        (
            step(error_code=0),
            step(error_code=3),
            "asks v3: topics/a/partitions/0/error_code: kafka 0",
        ),
        (step(error_code=0), step(), "error_code: kafka 0, headrace nothing"),
        (step(), Step("asks v3", CLOSED), "headrace '<connection closed>'"),
        (step(), Step("asks v4", {}), "the scenarios part"),
    ],
)
def test_a_difference_that_is_not_on_the_list_is_found(
    kafka: Step, headrace: Step, found: str
) -> None:
    check("no such scenario", [kafka], [kafka])
    with pytest.raises(AssertionError, match=re.escape(found)):
        check("no such scenario", [kafka], [headrace])


def test_a_difference_on_the_list_must_occur() -> None:
    with pytest.raises(AssertionError, match="does not differ any more"):
        check("static_member_changes", [step()], [step()])


def test_generated_ids_are_compared_by_their_first_occurrence() -> None:
    def members(*ids: str) -> object:
        symbols = Symbols(("localhost", 9092), 0)
        return normal([LeaveGroupRequest(member_id=member_id) for member_id in ids], symbols)

    assert members("x", "y", "x") == members("p", "q", "p")
    assert members("x", "y", "x") != members("p", "q", "q")
