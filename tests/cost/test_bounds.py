"""Every API has a bound, and every field that a client can make large has a request that tests it."""

from __future__ import annotations

import pytest

from headrace.broker.dispatch import APIS
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.frame import decode_request
from tests.cost.bounds import BOUNDS, WHAT_BOUNDS
from tests.cost.fields import FIELDS, NUMBERS, WORDS, Kind
from tests.cost.requests import Repeated, Values, cases
from tests.cost.shapes import Shape, make, needs_row, request_schemas, served_fields

NAMES = sorted(request_schemas())
VALUES = Values({kind: [] for kind in Kind})


def test_every_api_has_a_bound():
    assert {ApiKey(api.key) for api in APIS} == set(BOUNDS), "tests/cost/bounds.py: BOUNDS"


@pytest.mark.parametrize("name", NAMES)
def test_every_field_that_can_be_large_is_classified(name):
    wanted = {path for path, each in served_fields(name).items() if needs_row(each)}
    known = {path for path, kind in FIELDS.get(name, {}).items() if _is_size(name, path)}
    assert wanted == known, f"tests/cost/fields.py: say what these fields of {name} hold"


def _is_size(name: str, path: str) -> bool:
    """Return whether a field needs its row. Rows for numbers are optional."""
    found = served_fields(name).get(path)
    return found is None or needs_row(found)


def test_numbers_and_words_are_those_of_fields():
    for name, row in NUMBERS.items():
        assert set(row) <= set(served_fields(name)), f"tests/cost/fields.py: NUMBERS of {name}"
    for place in WORDS:
        name, _, path = place.partition(".")
        assert path in FIELDS[name], f"tests/cost/fields.py: WORDS, {place}"


def test_every_kind_has_a_bound():
    assert set(WHAT_BOUNDS) == set(Kind)


@pytest.mark.parametrize("name", NAMES)
def test_every_list_and_text_is_made_large(name):
    tried = " ".join(case.name for case in cases(name, VALUES, thorough=False))
    for path, each in served_fields(name).items():
        if each.is_array or (each.type in {"string", "bytes"} and "." not in path):
            assert f" {path}: " in tried, f"no request makes {path} of {name} large"


def test_a_request_of_many_equal_elements_is_what_the_codec_makes():
    def shape(count: int) -> Shape:
        return Shape({"topics": count}, lambda kind, path, number: None)

    for version in (1, 12):  # plain and flexible
        made = Repeated.of("MetadataRequest", version, shape)
        for count in (1, 127, 128, 3000):
            _, decoded = decode_request(memoryview(made.frame(count))[4:])
            assert decoded == make("MetadataRequest", version, shape(count))
