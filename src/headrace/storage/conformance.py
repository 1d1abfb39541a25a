"""Checks that a storage behaves as the partition log expects, for classes of your own.

    from headrace.storage.conformance import CHECKS

    @pytest.mark.parametrize("check", CHECKS)
    def test_my_storage(check):
        check(MyStorage)

`CHECKS` has all checks of this module.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from headrace.ports import SegmentStorage

Make = Callable[[], SegmentStorage]

_SIZES: Final = (1, 7, 100, 997, 4096, 4097, 70_000)


def check_begins_empty(make: Make) -> None:
    """Check that a new storage is empty, and that two storages share nothing."""
    storage, other = make(), make()
    assert isinstance(storage, SegmentStorage), "it lacks a member of headrace.ports.SegmentStorage"
    assert storage.size == 0, "a new storage is empty"
    assert bytes(storage.read(0, 100)) == b"", "nothing can be read from an empty storage"
    other.append([b"x"])
    assert storage.size == 0, "two storages are two segments"


def check_reads_any_range(make: Make) -> None:
    """Check that batches of any size can be read in any range, also across batches and beyond the end."""
    storage, content = make(), b""
    for number, size in enumerate(_SIZES):
        batch = _batch(number, size)
        storage.append([batch[:20], memoryview(batch)[20:], b""])
        content += batch
        assert storage.size == len(content), "size counts all pieces of a batch"
    for position in range(0, len(content), 1009):
        for size in (0, 1, 61, 5000, len(content)):
            found = bytes(storage.read(position, size))
            assert found == content[position : position + size], f"{size} bytes at {position}"
    assert bytes(storage.read(len(content), 10)) == b"", "there is nothing behind the end"


def check_copies_what_it_is_given(make: Make) -> None:
    """Check that an append copies its buffers, which the caller uses again."""
    storage, memory = make(), bytearray(b"before")
    storage.append([memory])
    memory[:] = b"after!"
    assert bytes(storage.read(0, 6)) == b"before", (
        "append keeps what it was given, not where it lay"
    )


def check_what_was_read_stays(make: Make) -> None:
    """Check that a range that was returned never changes: a connection may send it much later."""
    storage = make()
    storage.append([b"abcdefgh" * 2000])
    early = storage.read(4, 9000)
    expected = bytes(early)
    for _ in range(50):
        storage.append([b"Z" * 10_000])
    assert bytes(early) == expected, "it changed when the segment grew"
    early = storage.read(4, 9000)
    storage.truncate(10)
    storage.append([b"Y" * 20_000])
    assert bytes(early) == expected, "it changed when the segment was cut and written again"
    del storage
    assert bytes(early) == expected, "it changed when the segment was dropped"


def check_truncates(make: Make) -> None:
    """Check that a segment can be cut at any byte, never grows by a cut, and can be appended to afterwards."""
    for size in (0, 1, 4095, 4096, 4097, 69_999, 70_000):
        storage, content = make(), _batch(3, 70_000)
        storage.append([content[:5000]])
        storage.append([content[5000:]])
        storage.truncate(size)
        storage.truncate(100_000)
        assert storage.size == size, f"cut to {size}"
        storage.append([b"new"])
        assert bytes(storage.read(0, 100_000)) == content[:size] + b"new", f"after a cut to {size}"


def check_rolls(make: Make) -> None:
    """Check that the next segment is empty and of the same kind, and that the previous one can still be read."""
    first = make()
    first.append([b"first"])
    second = first.roll()
    assert isinstance(second, SegmentStorage), "roll returns a storage"
    assert second.size == 0, "the next segment begins empty"
    second.append([b"second"])
    third = second.roll()
    third.append([b"third"])
    found = [bytes(each.read(0, 100)) for each in (first, second, third)]
    assert found == [b"first", b"second", b"third"], "segments do not share what is in them"


CHECKS: Final[tuple[Callable[[Make], None], ...]] = (
    check_begins_empty,
    check_reads_any_range,
    check_copies_what_it_is_given,
    check_what_was_read_stays,
    check_truncates,
    check_rolls,
)


def _batch(number: int, size: int) -> bytes:
    return bytes((number + position) & 0xFF for position in range(size))
