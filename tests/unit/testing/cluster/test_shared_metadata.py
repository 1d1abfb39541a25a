"""Metadata that several threads use."""

from __future__ import annotations

import threading
from typing import Any, cast

from headrace.ports import MetadataEntry, Put
from headrace.testing.cluster.shared_metadata import SharedMetadata


def test_a_reader_never_misses_an_entry_while_a_commit_replaces_it() -> None:
    metadata = SharedMetadata()
    session = metadata.begin_session()
    metadata.commit([], [Put("a", b"1")], session)
    found: list[MetadataEntry | None] = []
    reader = threading.Thread(target=lambda: found.append(metadata.get("a")))

    class ReadMeanwhile:
        """A value that is converted in the middle of its commit."""

        def __bytes__(self) -> bytes:
            reader.start()
            reader.join(0.05)
            return b"2"

    metadata.commit([], [Put("a", cast("Any", ReadMeanwhile()))], session)
    reader.join()
    assert found[0] is not None
