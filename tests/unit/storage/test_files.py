"""Promises of both file systems, and promises of the disk only."""

from __future__ import annotations

import errno
import gc
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace.errors import StorageError
from headrace.ports import FileSystem
from headrace.storage.memory_files import MemoryFileSystem
from headrace.storage.os_files import OsFileSystem
from headrace.types import Buffer, FileRange
from tests.fixtures.crash_files import CrashFileSystem

needs_proc = pytest.mark.skipif(
    not Path("/proc/self/fd").exists(), reason="looks descriptors up in /proc"
)


@pytest.fixture(params=["memory", "os", "crash"])
def files(request: pytest.FixtureRequest, tmp_path: Path) -> FileSystem:
    if request.param == "memory":
        return MemoryFileSystem()
    return OsFileSystem(tmp_path / "new" / "root") if request.param == "os" else CrashFileSystem()


@pytest.fixture
def disk(tmp_path: Path) -> OsFileSystem:
    return OsFileSystem(tmp_path)


def open_descriptors(path: Path) -> Iterator[str]:
    for link in Path("/proc/self/fd").iterdir():
        try:
            target = str(link.readlink())
        except OSError:
            continue
        if target.startswith(str(path)):
            yield target


def test_a_file_grows_and_is_read_in_any_piece(files: FileSystem) -> None:
    files.make_directory("a/b")
    file = files.open("a/b/log", create=True)
    content = b""
    for number in range(200):
        parts: list[Buffer] = [
            bytes([number]) * (number * 7),
            b"",
            memoryview(bytes([number])),
            bytearray(b"xy"),
        ]
        file.append(parts)
        content += b"".join(parts)
        assert file.size == len(content)
    for position in range(0, len(content), 997):
        for size in (0, 1, 100, 5000, 10**9):
            assert file.read(position, size) == content[position : position + size]
            assert b"".join(file.buffers(position, size)) == content[position : position + size]
    assert file.read(len(content) + 5, 10) == b""
    assert files.open("a/b/log").size == len(content)
    assert files.read_file("a/b/log") == content


def test_returned_buffers_never_change(files: FileSystem) -> None:
    file = files.open("log", create=True)
    file.append([b"abcdefgh" * 2000])
    early = FileRange(file, 4, 9000)
    views = file.buffers(4, 9000)
    expected = b"".join(views)
    file.truncate(10)
    file.append([b"Z" * 20_000])
    files.remove("log")
    assert b"".join(views) == expected
    assert early.size == 9000
    assert file.read(0, 12) == b"abcdefghabZZ"


@pytest.mark.parametrize("size", [0, 1, 4095, 4096, 4097, 70_000])
def test_a_file_can_be_truncated_to_any_size(files: FileSystem, size: int) -> None:
    content = os.urandom(70_000)
    file = files.open("log", create=True)
    file.append([content[:5000], content[5000:]])
    file.truncate(size)
    file.truncate(100_000)  # never grows
    assert file.size == size
    file.append([b"new"])
    assert file.read(0, 100_000) == content[:size] + b"new"


def test_a_file_system_lists_opens_renames_and_removes_files(files: FileSystem) -> None:
    assert files.list("nowhere") == []
    assert files.read_file("nothing") is None
    with pytest.raises(FileNotFoundError):
        files.open("nothing")
    with pytest.raises(FileNotFoundError):
        files.open("no/such/directory", create=True)
    files.make_directory("t-0")
    files.make_directory("t-0")
    files.make_directory("t-1/deeper")
    files.open("t-0/b", create=True)
    files.open("t-0/a", create=True)
    files.write_file("t-0/c", b"one")
    files.write_file("t-0/c", b"two")
    assert files.read_file("t-0/c") == b"two"
    assert files.list("t-0") == ["a", "b", "c"]
    assert files.list("") == ["t-0", "t-1"]
    files.remove("t-0/a")
    files.remove("t-0/a")
    files.rename("t-0/b", "t-0/d")
    files.rename("t-0", "t-2")
    assert files.list("t-2") == ["c", "d"]
    assert files.list("t-0") == []
    with pytest.raises(FileNotFoundError):
        files.rename("t-0", "t-3")
    files.sync_directory("t-2")
    files.remove_tree("t-2")
    files.remove_tree("t-2")
    assert files.list("") == ["t-1"]


@pytest.mark.parametrize("path", ["../x", "/etc/passwd", "a/../../x", "a/..", "x\0y", ".."])
def test_no_path_leads_out_of_the_root(disk: OsFileSystem, path: str) -> None:
    for attempt in (
        disk.open,
        disk.read_file,
        disk.list,
        disk.remove,
        disk.remove_tree,
        disk.make_directory,
    ):
        with pytest.raises(StorageError):
            attempt(path)
    with pytest.raises(StorageError):
        disk.rename("a", path)
    with pytest.raises(StorageError):
        disk.remove_tree("")


@pytest.mark.slow
@needs_proc
def test_descriptors_close_with_the_last_range(disk: OsFileSystem, tmp_path: Path) -> None:
    file = disk.open("log", create=True)
    file.append([b"0123456789"])
    found = FileRange(file, 2, 3)
    file.close()
    disk.remove("log")
    del file
    assert list(open_descriptors(tmp_path))
    assert found.read() == b"234"
    assert os.pread(found.file.fileno() or 0, 3, 2) == b"234"
    del found
    gc.collect()
    assert not list(open_descriptors(tmp_path))


def test_descriptors_are_not_inherited(disk: OsFileSystem) -> None:
    assert not os.get_inheritable(disk.open("log", create=True).fileno())


def test_a_closed_file_takes_no_appends_but_can_be_synced(disk: OsFileSystem) -> None:
    file = disk.open("log", create=True)
    file.append([b"x"])
    file.close()
    with pytest.raises(OSError, match="closed"):
        file.append([b"y"])
    file.sync()  # a group commit may have it in hand
    assert file.read(0, 5) == b"x"


def test_many_buffers_in_one_append(disk: OsFileSystem) -> None:
    file = disk.open("log", create=True)
    file.append([b"ab"] * 3000)
    assert file.size == 6000
    assert file.read(0, 10_000) == b"ab" * 3000


def test_a_short_write_is_completed(disk: OsFileSystem, monkeypatch: pytest.MonkeyPatch) -> None:
    file = disk.open("log", create=True)
    real_write, real_writev = os.write, os.writev
    monkeypatch.setattr(os, "writev", lambda fd, buffers: real_writev(fd, [bytes(buffers[0])[:3]]))
    monkeypatch.setattr(os, "write", lambda fd, data: real_write(fd, bytes(data)[:2]))
    file.append([b"abcde", b"fgh"])
    assert file.read(0, 100) == b"abcdefgh"


def test_a_partially_failed_append_is_truncated(
    disk: OsFileSystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = disk.open("log", create=True)
    file.append([b"whole"])
    real_writev = os.writev

    def full(*_arguments: object) -> int:
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(os, "writev", lambda fd, buffers: real_writev(fd, [bytes(buffers[0])[:3]]))
    monkeypatch.setattr(os, "write", full)
    with pytest.raises(OSError, match="full"):
        file.append([b"torn!", b"..."])
    monkeypatch.undo()
    assert file.size == 5
    assert disk.read_file("log") == b"whole"
    file.append([b"!"])
    assert disk.read_file("log") == b"whole!"


def test_an_append_on_a_full_disk_leaves_the_file_unchanged(tmp_path: Path) -> None:
    """A real one: the file size limit of a child process."""
    script = f"""
import os, resource, signal
from headrace.storage.os_files import OsFileSystem
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))
file = OsFileSystem({str(tmp_path)!r}).open("log", create=True)
file.append([b"a" * 6000])
try:
    file.append([b"b" * 3000, b"c" * 3000])
except OSError as error:
    print(error.errno, file.size, os.stat({str(tmp_path / "log")!r}).st_size)
"""
    output = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60
    ).stdout
    assert output.split() == [str(errno.EFBIG), "6000", "6000"]


def test_after_a_failed_sync_the_log_refuses_appends_and_syncs(
    disk: OsFileSystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = disk.open("log", create=True)
    file.append([b"x"])
    with monkeypatch.context() as patched:
        patched.setattr("headrace.storage.os_files._sync_data", raise_eio)
        with pytest.raises(OSError, match="broken"):
            file.sync()
    for attempt in (file.sync, lambda: file.append([b"y"]), lambda: file.truncate(0)):
        with pytest.raises(OSError, match="broken"):
            attempt()
    assert file.read(0, 1) == b"x"


def test_a_sync_that_fails_for_lack_of_space_fails_the_file(
    disk: OsFileSystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ENOSPC always means that the data was not written, and everything else is unchanged."""

    def no_space(_descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    file = disk.open("log", create=True)
    file.append([b"x"])
    with monkeypatch.context() as patched:
        patched.setattr("headrace.storage.os_files._sync_data", no_space)
        patched.setattr(os, "fsync", no_space)
        for attempt in (file.sync, lambda: disk.sync_directory("")):
            with pytest.raises(OSError, match="No space left") as raised:
                attempt()
            assert raised.value.errno == errno.EIO


def raise_eio(_descriptor: int) -> None:
    raise OSError(errno.EIO, "broken")


def test_a_file_that_cannot_be_truncated_after_a_failed_append_is_given_up(
    disk: OsFileSystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = disk.open("log", create=True)
    with monkeypatch.context() as patched:
        patched.setattr(os, "writev", lambda fd, _buffers: raise_eio(fd))
        patched.setattr(os, "ftruncate", lambda fd, _size: raise_eio(fd))
        with pytest.raises(OSError, match="broken"):
            file.append([b"x"])
    with pytest.raises(OSError, match="broken"):
        file.append([b"x"])


def test_write_file_leaves_the_old_content_when_it_fails(
    disk: OsFileSystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk.write_file("checkpoint", b"old")
    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", raise_eio)
        with pytest.raises(OSError, match="broken"):
            disk.write_file("checkpoint", b"new")
    assert disk.read_file("checkpoint") == b"old"
    assert disk.list("") == ["checkpoint"], "an incomplete file on a full disk is removed"


@needs_proc
def test_write_file_syncs_before_the_rename_and_the_directory_after(
    disk: OsFileSystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[str] = []
    real_fsync, real_replace = os.fsync, Path.replace

    def fsync(descriptor: int) -> None:
        events.append("fsync " + Path(f"/proc/self/fd/{descriptor}").readlink().name)
        real_fsync(descriptor)

    def replace(source: Path, target: Path) -> Path:
        events.append("rename")
        return real_replace(source, target)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(Path, "replace", replace)
    disk.write_file("checkpoint", b"x")
    assert events == ["fsync checkpoint.tmp", "rename", f"fsync {disk.root.name}"]


def test_a_second_process_cannot_lock_the_directory(disk: OsFileSystem, tmp_path: Path) -> None:
    disk.lock()
    other = OsFileSystem(tmp_path)
    with pytest.raises(StorageError, match="in use by another broker"):
        other.lock()
    disk.unlock()
    disk.unlock()
    other.lock()
    other.unlock()


def test_removing_a_linked_directory_removes_its_content_and_the_link(tmp_path: Path) -> None:
    disk = OsFileSystem(tmp_path / "data")
    elsewhere = tmp_path / "elsewhere"
    (elsewhere / "deeper").mkdir(parents=True)
    (elsewhere / "deeper" / "file").write_bytes(b"content")
    (elsewhere / "file").write_bytes(b"content")
    (tmp_path / "data" / "t-0").symlink_to(elsewhere)
    (tmp_path / "data" / "broken").symlink_to(tmp_path / "nowhere")
    disk.rename("t-0", "t-0-delete")
    disk.remove_tree("t-0-delete")
    disk.remove_tree("broken")
    assert disk.list("") == []
    assert list(elsewhere.iterdir()) == []


@pytest.mark.parametrize("operation", ["rename", "write_file"])
def test_an_operation_that_cannot_open_a_file_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, operation: str
) -> None:
    disk = OsFileSystem(tmp_path)
    disk.write_file("old", b"before")
    opened, left = os.open, 0

    def refused(*args: Any, **options: Any) -> int:
        nonlocal left
        left -= 1
        if not left:
            raise OSError(errno.EMFILE, "Too many open files")
        return opened(*args, **options)

    for number in range(1, 10):
        left = number
        with monkeypatch.context() as patch:
            patch.setattr(os, "open", refused)
            try:
                if operation == "rename":
                    disk.rename("old", "new")
                else:
                    disk.write_file("old", b"after")
            except OSError:
                assert disk.list("") == ["old"]
                assert disk.read_file("old") == b"before"
            else:
                break
    assert 1 < number < 9
