"""The znodes of the metadata store on ZooKeeper: names, values, and values in other formats."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.metadata_stores.zookeeper import layout
from headrace.metadata_stores.zookeeper.layout import (
    Change,
    LoggedDelete,
    LoggedPut,
    UnreadableZnodeError,
)


@pytest.mark.parametrize(
    ("key", "path"),
    [
        ("topics/flights", "/headrace/entries/topics/flights"),
        ("state/AbC_-1/0", "/headrace/entries/state/AbC_-1%2F0"),
        ("controller_epoch", "/headrace/entries/-/controller_epoch"),
        ("-/a", "/headrace/entries/%2D/a"),
        ("topics/", "/headrace/entries/topics/%"),
        ("/a", "/headrace/entries/%/a"),
        ("./..", "/headrace/entries/%2E/%2E%2E"),
        ("Ü/z%", "/headrace/entries/%C3%9C/z%25"),
    ],
)
def test_a_key_has_a_path_that_an_operator_can_read(key: str, path: str) -> None:
    assert layout.path_of(key) == path
    assert layout.key_of(*path.split("/")[-2:]) == key


@given(st.lists(st.text(min_size=1).filter(str.isprintable), min_size=2, max_size=2, unique=True))
def test_every_key_has_a_path_of_its_own(keys: list[str]) -> None:
    first, second = (layout.path_of(key) for key in keys)
    assert first != second
    for key, path in zip(keys, (first, second), strict=True):
        directory, name = path.split("/")[3:]
        assert {directory, name}.isdisjoint({"", ".", ".."})
        assert path.isascii()
        assert layout.key_of(directory, name) == key


def test_a_value_and_a_mark_are_read_back() -> None:
    assert layout.value_of(layout.value_data(b"{}")) == b"{}"
    assert layout.value_of(layout.value_data(b"")) == b""
    assert layout.value_of(layout.mark_data()) is None


@pytest.mark.parametrize("data", [b"", b"{}", b"2={}", b"1", b"1-x"])
def test_a_value_in_another_format_is_refused(data: bytes) -> None:
    with pytest.raises(UnreadableZnodeError):
        layout.value_of(data)


def test_a_change_is_read_back() -> None:
    puts = [LoggedPut("a", b"1", 3, ephemeral=True), LoggedPut("b", None, 0, ephemeral=False)]
    change = Change(layout.FORMAT, 2**56, puts, [LoggedDelete("c", 4), LoggedDelete("d", -1)])
    assert layout.change_of(layout.change_data(change)) == change


@pytest.mark.parametrize(
    "data", [b"", b"{}", msgspec.msgpack.encode([2, "new"]), msgspec.msgpack.encode([1, "short"])]
)
def test_a_change_in_another_format_is_refused(data: bytes) -> None:
    with pytest.raises(UnreadableZnodeError):
        layout.change_of(data)


def test_the_root_and_the_log_name_their_formats() -> None:
    assert layout.root_format(layout.root_data()) == layout.FORMAT
    assert layout.root_format(b'{"format": 7, "new": 1}') == 7
    assert layout.generation_of(layout.log_data(3)) == 3
    for data in (b"", b"3", b'{"generation": 3, "format": 2}'):
        with pytest.raises(UnreadableZnodeError):
            layout.generation_of(data)
