"""Names of members, and the form in which they are shown to users."""

from __future__ import annotations

import pytest

from headrace.core.lease.names import most_of, named, owner_of, shown


@pytest.mark.parametrize("owner", ["billing-7", "a#b", "a/3", "a/3#4/5", "me@host:7", "größe"])
@pytest.mark.parametrize("most", [None, 4])
def test_a_member_name_contains_owner_and_limit(owner: str, most: int | None) -> None:
    name = named(owner, "9f2c", most)
    assert name.startswith(f"{owner}#9f2c")
    assert (owner_of(name), most_of(name)) == (owner, most)


def test_a_member_without_an_owner_is_shown_with_its_whole_name() -> None:
    assert owner_of(named("", "9f2c", None)) == "9f2c"
    assert owner_of(named("", "9f2c", 4)) == "9f2c/4"


def test_members_with_the_same_owner_are_shown_with_their_whole_names() -> None:
    assert shown(["me#1", "me#2", "you#3", "you#3", "4"]) == {
        "me#1": "me#1",
        "me#2": "me#2",
        "you#3": "you",
        "4": "4",
    }
