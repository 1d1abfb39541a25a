"""A client whose constructor fails leaves nothing open."""

from __future__ import annotations

from pathlib import Path

import pytest

import headrace
from headrace.errors import HeadraceError


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="open files are counted in /proc")
@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (headrace.Consumer, {"group": "g", "assignor": "stikky"}),
        (headrace.Consumer, {"serde": "yaml"}),
        (headrace.Producer, {"partitioner": "stikky"}),
        (headrace.Producer, {"serde": "yaml"}),
    ],
)
def test_a_failed_constructor_closes_its_sockets(kind, options) -> None:
    before = open_files()
    with pytest.raises(HeadraceError, match=r"stikky|yaml"):
        kind("127.0.0.1:9092", **options)
    assert open_files() == before


@pytest.mark.parametrize("kind", [headrace.Consumer, headrace.Producer])
def test_a_failed_constructor_detaches_the_client(kind) -> None:
    with headrace.Broker() as broker:
        before = list(broker._runtime.clients)
        with pytest.raises(HeadraceError, match="yaml"):
            kind(broker, serde="yaml")
        assert broker._runtime.clients == before
