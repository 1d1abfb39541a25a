"""The promises of a storage, and how the broker handles a storage that breaks them."""

from __future__ import annotations

import errno
from importlib.metadata import EntryPoint
from typing import Any

import pytest

from headrace import registers
from headrace.errors import ConfigError
from headrace.storage.conformance import CHECKS
from headrace.storage.os_files import OsFileSystem
from headrace.storage.registry import STORAGES, register_storage, storages
from headrace.storage.segment_files import ArraySegment, StorageFileSystem, StoredFile


class ListSegment:
    """A storage as a user may write it: a list of batches."""

    def __init__(self) -> None:
        self.batches: list[bytes] = []

    @property
    def size(self) -> int:
        return sum(map(len, self.batches))

    def append(self, buffers) -> None:
        self.batches.append(b"".join(buffers))

    def read(self, position: int, size: int) -> bytes:
        return b"".join(self.batches)[position : position + size]

    def truncate(self, size: int) -> None:
        self.batches = [self.read(0, size)]

    def roll(self) -> ListSegment:
        return ListSegment()


class Forgetful(ListSegment):
    def read(self, position: int, size: int) -> bytes:
        return super().read(position, size)[:100]


class Aliasing(ArraySegment):
    """Hands out its own memory and writes into it again."""

    def truncate(self, size: int) -> None:
        self._size = min(self._size, size)


class Keeping(ListSegment):
    def append(self, buffers) -> None:
        self.batches += buffers


class Rolling(ListSegment):
    def roll(self):
        return self


@pytest.mark.parametrize("kind", [ArraySegment, ListSegment])
@pytest.mark.parametrize("check", CHECKS)
def test_every_storage_conforms_to_the_protocol(check, kind) -> None:
    check(kind)


@pytest.mark.parametrize("kind", [Forgetful, Aliasing, Keeping, Rolling])
def test_the_conformance_checks_find_each_defect(kind) -> None:
    found = []
    for check in CHECKS:
        try:
            check(kind)
        except AssertionError as error:
            found.append(str(error))
    assert found
    assert all(found), "each says what is wrong"


def test_a_storage_as_a_file_system_keeps_names() -> None:
    files = StorageFileSystem("mine", ListSegment)
    assert files.describe().in_memory
    assert files.describe().name == "memory:mine"
    with pytest.raises(FileNotFoundError):
        files.open("t-0/00000000000000000000.log", create=True)
    files.make_directory("t-0")
    first = files.open("t-0/00000000000000000000.log", create=True)
    first.append([b"a", b"bc"])
    assert (first.size, first.read(1, 5), first.fileno()) == (3, b"bc", None)
    assert list(first.buffers(3, 5)) == []
    files.open("t-0/00000000000000000000.index", create=True).append([b"i"])
    files.rename("t-0", "t-0.x-delete")
    assert files.open("t-0.x-delete/00000000000000000000.log").read(0, 9) == b"abc"
    files.remove_tree("t-0.x-delete")
    assert files.list("") == []
    assert first.read(0, 9) == b"abc"


def test_segments_are_rolled_and_compaction_writes_beside_them() -> None:
    made: list[Counting] = []

    class Counting(ListSegment):
        def __init__(self, rolled_from: Counting | None = None) -> None:
            super().__init__()
            self.rolled_from = rolled_from
            made.append(self)

        def roll(self) -> Counting:
            return Counting(self)

    files = StorageFileSystem("mine", Counting)
    files.make_directory("t-0")
    files.make_directory("t-1")
    for name in ("t-0/0.log", "t-0/5.log", "t-1/0.log", "t-0/0.log.cleaned", "t-0/9.log"):
        files.open(name, create=True)
    assert [each.rolled_from for each in made] == [None, made[0], None, None, made[1]]


@pytest.mark.parametrize("call", ["append", "read", "truncate", "roll"])
def test_any_exception_of_a_storage_is_a_failed_disk(call) -> None:
    class Broken(ListSegment):
        pass

    def fail(*_: object) -> Any:
        raise KeyError("mine")

    setattr(Broken, call, fail)
    file = StoredFile(Broken())
    calls = {
        "append": lambda: file.append([b"x"]),
        "read": lambda: file.read(0, 1),
        "truncate": lambda: file.truncate(0),
        "roll": file.next_storage,
    }
    with pytest.raises(OSError, match=f"Broken.{call} failed: KeyError") as raised:
        calls[call]()
    assert raised.value.errno == errno.EIO


def test_a_full_storage_keeps_its_error_code() -> None:
    class Full(ListSegment):
        def append(self, buffers) -> None:
            raise OSError(errno.ENOSPC, "full")

    with pytest.raises(OSError, match="full") as raised:
        StoredFile(Full()).append([b"x"])
    assert raised.value.errno == errno.ENOSPC


def test_a_storage_name_has_to_be_registered(tmp_path) -> None:
    in_memory, on_disk = storages(in_memory=True), storages(in_memory=False)
    assert in_memory("linked") is None
    assert on_disk("files") is None
    assert on_disk("linked") is not None
    assert in_memory("array") is not in_memory("array")
    with pytest.raises(ConfigError, match="needs a directory"):
        in_memory("files")
    with pytest.raises(ConfigError, match=r"known are .*array.*register_storage"):
        in_memory("nobody's")
    with pytest.raises(ConfigError, match="own"):
        register_storage("files", ListSegment)
    register_storage("elsewhere", lambda: OsFileSystem(tmp_path))
    found = in_memory("elsewhere")
    assert isinstance(found, OsFileSystem)
    register_storage("no-storage", dict)  # type: ignore[arg-type]  # which is what is tested
    with pytest.raises(ConfigError, match=r"dict.*no size, append"):
        in_memory("no-storage")


def test_a_package_offers_a_storage_by_an_entry_point(monkeypatch) -> None:
    entry = EntryPoint("offered", f"{__name__}:ListSegment", "headrace.storages")
    monkeypatch.setattr(entry.__class__, "load", lambda _: ListSegment)
    monkeypatch.setattr(
        registers,
        "entry_points",
        lambda *, group, name: [entry] if (group, name) == (entry.group, entry.name) else [],
    )
    monkeypatch.setattr(STORAGES, "_factories", dict(STORAGES._factories))
    found = storages(in_memory=True)("offered")
    assert found is not None
    found.make_directory("t-0")
    found.open("t-0/0.log", create=True).append([b"x"])
    assert found.describe().name == "memory:offered"
