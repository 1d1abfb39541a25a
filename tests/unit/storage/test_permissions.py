"""Files in a data directory are for their owner only, or for the group if the directory has the permissions."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from headrace.storage.os_files import OsFileSystem
from headrace.storage.permissions import exposure, make_private_directory


@pytest.fixture(autouse=True)
def _no_umask():
    """See the permissions that are asked for: a umask would only take some away."""
    before = os.umask(0)
    yield
    os.umask(before)


def modes_below(directory: Path) -> dict[str, str]:
    return {
        str(path.relative_to(directory)): f"{path.stat().st_mode & 0o7777:o}"
        for path in directory.rglob("*")
    }


def fill(root: Path) -> None:
    files = OsFileSystem(root)
    files.lock()
    files.make_directory("t-0/deep")
    files.open("t-0/00.log", create=True).append([b"records"])
    files.write_file("t-0/checkpoint", b"1")
    files.unlock()


def test_new_files_and_directories_are_private_to_their_owner(tmp_path):
    tmp_path.chmod(0o755)
    fill(tmp_path / "new" / "data")
    assert modes_below(tmp_path) == {
        "new": "700",
        "new/data": "700",
        "new/data/.lock": "600",
        "new/data/t-0": "700",
        "new/data/t-0/deep": "700",
        "new/data/t-0/00.log": "600",
        "new/data/t-0/checkpoint": "600",
    }


def test_files_inherit_the_read_permission_of_the_group(tmp_path):
    data = tmp_path / "data"
    data.mkdir(0o750)
    fill(data)
    modes = modes_below(data)
    assert {modes.pop("t-0"), modes.pop("t-0/deep")} == {"750"}
    assert set(modes.values()) == {"640"}


@pytest.mark.parametrize("mode", [0o755, 0o777, 0o770, 0o751])
def test_new_files_in_a_directory_with_wide_permissions_are_private(tmp_path, mode):
    data = tmp_path / "data"
    data.mkdir(mode)
    fill(data)
    assert set(modes_below(data).values()) == {"700", "600"}
    assert f"{data.stat().st_mode & 0o777:o}" == f"{mode:o}"  # the operator's to change


@pytest.mark.parametrize(
    ("mode", "exposed"),
    [(0o700, False), (0o750, False), (0o710, False), (0o755, True), (0o701, True), (0o770, True)],
)
def test_exposure_names_the_command_that_closes_a_directory(tmp_path, monkeypatch, mode, exposed):
    data = tmp_path / "data"
    data.mkdir(mode)
    monkeypatch.setattr("headrace.storage.permissions.Path.parents", [Path("/")])
    assert exposure(data) == (
        f"chmod 700 {data} (or 750, for a group that may read it)" if exposed else None
    )


@pytest.mark.parametrize(("mode", "exposed"), [(0o770, False), (0o2775, True), (0o757, True)])
def test_closing_a_directory_of_another_user_keeps_the_access_of_the_group(
    tmp_path, monkeypatch, mode, exposed
):
    """A broker in a container often has its access to a volume by the group: `chmod 700` would shut it out."""
    data = tmp_path / "data"
    data.mkdir()
    data.chmod(mode)
    monkeypatch.setattr("headrace.storage.permissions.Path.parents", [Path("/")])
    monkeypatch.setattr(os, "geteuid", lambda: data.stat().st_uid + 1)
    assert exposure(data) == (f"chmod o-rwx {data}" if exposed else None)


def test_a_directory_above_closes_it_as_well(tmp_path):
    data = tmp_path / "above" / "data"
    data.mkdir(0o755, parents=True)
    data.parent.chmod(0o700)
    assert exposure(data) is None


def test_a_file_in_the_way_is_an_error(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(NotADirectoryError):
        make_private_directory(tmp_path / "file" / "below")
    with pytest.raises(NotADirectoryError):
        make_private_directory(tmp_path / "file")
