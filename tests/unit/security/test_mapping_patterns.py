"""Patterns of `ssl.principal.mapping.rules` with an exponential search are refused at the start."""

from __future__ import annotations

import pytest

from headrace.errors import ConfigError
from headrace.security.principal_mapping import PrincipalMapping

SUBJECT = "CN=alice,OU=readers,O=Example,L=Town,ST=State,C=DE"


@pytest.mark.parametrize(
    "pattern",
    [
        "^CN=(.*?),OU=(.*?),.*" + ".*" * 100 + "$",
        "(.*)(.*)(.*)x",
        "(a|.*).*.*x",
        ".*b?.*c?.*x",
        ".*(?=x).*.*x",
        "(a+)+",
        "".join(f".*{letter}" for letter in "abcdefghijk"),
    ],
)
def test_patterns_that_can_take_for_ever(pattern: str) -> None:
    with pytest.raises(ConfigError, match="for ever"):
        PrincipalMapping(f"RULE:{pattern}/x/")


@pytest.mark.parametrize(
    "pattern",
    [
        "^CN=(.*?),OU=(.*?),O=(.*?),L=(.*?),ST=(.*?),C=(.*?)$",
        "^CN=([^,]+),.*$",
        "^CN=(.*?)(,OU=.*)$",
        "(?:CN|cn)=(.*?),.*",
    ],
)
def test_common_mapping_patterns_are_accepted(pattern: str) -> None:
    assert PrincipalMapping(f"RULE:{pattern}/$1/,DEFAULT").name_of(SUBJECT) == "alice"
