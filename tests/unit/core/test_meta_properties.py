"""The owner of a log directory, by its meta.properties."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.core.meta_properties import META_FILE, claim, read_meta
from headrace.errors import StorageError
from headrace.storage.memory_files import MemoryFileSystem


def claimed(files: MemoryFileSystem, new_id: str = "new", **whose: object) -> str:
    wanted = {"cluster_id": "c", "node_id": 1, **whose}
    return claim(files, new_id=new_id, **wanted)  # type: ignore[arg-type]  # a test's shorthand


def test_a_new_directory_is_marked_and_keeps_its_id() -> None:
    files = MemoryFileSystem()
    assert read_meta(files) is None
    assert claimed(files, "first") == "first"
    assert claimed(files, "other") == "first"
    assert read_meta(files) == {
        "version": "1",
        "cluster.id": "c",
        "node.id": "1",
        "directory.id": "first",
    }


def test_a_directory_of_an_earlier_version_gets_an_id_and_keeps_its_properties() -> None:
    files = MemoryFileSystem()
    files.write_file(META_FILE, b"version=1\ncluster.id=c\nnode.id=1\nremark = mine \n")
    assert claimed(files, "") == ""
    assert claimed(files, "late") == "late"
    assert (read_meta(files) or {})["remark"] == "mine"


@pytest.mark.parametrize("whose", [{"cluster_id": "d"}, {"node_id": 2}])
def test_a_directory_of_another_cluster_is_left_unchanged(whose: dict[str, Any]) -> None:
    files = MemoryFileSystem()
    claimed(files)
    before = files.read_file(META_FILE)
    with pytest.raises(StorageError, match="give this one its own directory"):
        claimed(files, **whose)
    assert files.read_file(META_FILE) == before
