from __future__ import annotations

import pytest

from headrace.core.log.index.leader_epochs import LeaderEpochCache

ENTRIES = [(1, 0), (2, 10), (5, 30)]
END = 40


@pytest.mark.parametrize(
    ("epoch", "answer"),
    [
        (-1, (-1, -1)),
        (0, (0, 0)),  # before the first: everything follows
        (1, (1, 10)),
        (2, (2, 30)),
        (3, (2, 30)),  # unknown in between: the one below
        (4, (2, 30)),
        (5, (5, END)),
        (6, (-1, -1)),
    ],
)
def test_an_epoch_ends_where_the_next_epoch_begins(epoch: int, answer: tuple[int, int]) -> None:
    assert LeaderEpochCache(ENTRIES).end_offset_for(epoch, END) == answer


def test_an_empty_epoch_cache_returns_unknown() -> None:
    assert LeaderEpochCache().end_offset_for(0, END) == (-1, -1)
    assert LeaderEpochCache().latest == LeaderEpochCache().epoch_at(3) == -1


def test_a_new_epoch_begins_at_its_offset() -> None:
    cache = LeaderEpochCache(ENTRIES)
    assert not cache.assign(5, 35)
    assert not cache.assign(4, 40)
    assert cache.assign(6, 40)
    assert cache.assign(7, 40)  # epoch 6 wrote nothing
    assert cache.entries == [*ENTRIES, (7, 40)]
    assert [cache.epoch_at(offset) for offset in (0, 9, 10, 29, 39, 40)] == [1, 1, 2, 2, 5, 7]


def test_truncation_removes_epochs_at_both_ends() -> None:
    cache = LeaderEpochCache(ENTRIES)
    assert not cache.truncate_to_end(31)
    assert cache.truncate_to_end(30)
    assert cache.entries == [(1, 0), (2, 10)]
    assert not cache.truncate_to_start(0)
    assert cache.truncate_to_start(15)
    assert cache.entries == [(2, 15)]
    assert cache.truncate_to_end(0)
    assert cache.entries == []


def test_the_checkpoint_contains_the_offset_up_to_which_it_is_valid() -> None:
    content = LeaderEpochCache(ENTRIES).encode(END)
    cache, covered = LeaderEpochCache.decode(content)
    assert (cache.entries, covered) == (ENTRIES, END)
    for damaged in (None, b"", content[:-1], content.replace(b"30", b"31"), b"headrace other 1\n"):
        cache, covered = LeaderEpochCache.decode(damaged)
        assert (cache.entries, covered) == ([], 0)
