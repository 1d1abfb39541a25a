"""Opening the data directories of a process: their locks, the first directory, and errors."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from headrace.broker.log_dirs.log_dirs import UnusableDirectory
from headrace.core.meta_properties import META_FILE
from headrace.errors import ConfigError, StorageError
from headrace.server.stores import boot_id, open_stores
from headrace.storage.os_files import OsFileSystem
from tests.fixtures.metadata_stores import stored


def test_without_directories_everything_is_in_memory() -> None:
    stores = open_stores([])
    assert stores.files.describe().in_memory
    assert not stores.further
    assert stored(stores.metadata) == {}


def test_every_directory_is_locked_and_the_first_has_the_metadata(tmp_path: Path) -> None:
    paths = [tmp_path / "one", tmp_path / "two"]
    stores = open_stores(paths)
    assert (paths[0] / "metadata.sqlite").exists()
    assert not (paths[1] / "metadata.sqlite").exists()
    assert [(path / ".lock").read_text() for path in paths] == [f"pid {os.getpid()}\n"] * 2
    with pytest.raises(StorageError, match=f"held by pid {os.getpid()}"):
        open_stores([tmp_path / "three", paths[1]])
    stores.metadata.close()


def test_a_directory_is_named_once(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "one")
    with pytest.raises(ConfigError, match="named twice"):
        open_stores([tmp_path / "one", tmp_path / "link"])
    assert not (tmp_path / "one").exists()


def test_the_directory_with_the_metadata_comes_first(tmp_path: Path) -> None:
    """Otherwise a broker would start empty because a disk is not mounted or the order has changed."""
    (tmp_path / "two").mkdir()
    (tmp_path / "two" / META_FILE).write_text("version=1\n")
    with pytest.raises(StorageError, match=r"one, has no metadata\.sqlite"):
        open_stores([tmp_path / "one", tmp_path / "two"])
    assert not (tmp_path / "one").exists()


def test_an_unusable_further_directory_is_returned_with_its_error(
    tmp_path: Path,
) -> None:
    (tmp_path / "file").write_text("no directory")
    stores = open_stores([tmp_path / "one", tmp_path / "file", tmp_path / "three"])
    unusable, other = stores.further
    assert isinstance(unusable, UnusableDirectory)
    assert unusable.name == str(tmp_path / "file")
    assert isinstance(unusable.error, OSError)
    assert isinstance(other, OsFileSystem)
    stores.metadata.close()


def test_the_first_directory_has_to_be_usable(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no directory")
    with pytest.raises(StorageError, match="cannot use the data directory"):
        open_stores([tmp_path / "file", tmp_path / "two"])


def test_the_boot_id_is_unknown_where_the_system_has_none(tmp_path: Path) -> None:
    path = tmp_path / "boot_id"
    assert boot_id(path) is None
    path.write_text("1f0e\n", encoding="ascii")
    assert boot_id(path) == "1f0e"
