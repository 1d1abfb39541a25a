from __future__ import annotations

import pytest

from headrace.core.log import SEQUENCE_MASK, BatchEntry
from headrace.core.log.producers.producer_state import ProducerStates
from headrace.errors import InvalidProducerEpochError, OutOfOrderSequenceError
from headrace.storage.memory_files import MemoryFileSystem
from tests.fixtures.logs import NOW_MS, append, batch_of, open_log

WRAP = 2**31 - 1


def state_after(*batches: tuple[int, int], epoch: int = 0, producer_id: int = 1) -> ProducerStates:
    """Append batches of (first sequence, count)."""
    state, offset = ProducerStates(100), 0
    for sequence, count in batches:
        assert state.check(producer_id, epoch, sequence, count - 1) is None
        last = (sequence + count - 1) & SEQUENCE_MASK
        entry = BatchEntry(sequence, last, offset, offset + count - 1, -1)
        state.update(producer_id, epoch, entry, NOW_MS)
        offset += count
    return state


@pytest.mark.parametrize("first", [0, 7, WRAP])
def test_an_unknown_producer_may_start_anywhere(first: int) -> None:
    assert ProducerStates(10).check(1, 3, first, 0) is None


def test_only_the_last_five_batches_are_recognised_as_retries() -> None:
    state = state_after(*((number * 2, 2) for number in range(7)))
    for number in range(2, 7):
        found = state.check(1, 0, number * 2, 1)
        assert found is not None
        assert found.base_offset == number * 2
    with pytest.raises(OutOfOrderSequenceError):
        state.check(1, 0, 2, 1)


@pytest.mark.parametrize(("sequence", "delta"), [(2, 0), (3, 1), (1, 2), (9, 0), (0, 2)])
def test_only_an_exact_repetition_is_one(sequence: int, delta: int) -> None:
    with pytest.raises(OutOfOrderSequenceError):
        state_after((0, 2), (2, 2)).check(1, 0, sequence, delta)


def test_sequences_wrap_to_zero() -> None:
    state = state_after((WRAP - 1, 2))
    assert state.check(1, 0, 0, 4) is None
    with pytest.raises(OutOfOrderSequenceError):
        state.check(1, 0, 1, 0)
    across = state_after((WRAP, 3))  # sequences WRAP, 0, 1
    assert across.check(1, 0, WRAP, 2) is not None
    assert across.check(1, 0, 2, 0) is None


def test_a_new_epoch_starts_at_zero_and_an_old_one_is_fenced() -> None:
    state = state_after((0, 3), epoch=4)
    assert state.check(1, 5, 0, 0) is None
    with pytest.raises(OutOfOrderSequenceError):
        state.check(1, 5, 3, 0)
    with pytest.raises(InvalidProducerEpochError):
        state.check(1, 3, 3, 0)
    state.update(1, 5, BatchEntry(0, 0, 3, 3, -1), NOW_MS)
    assert state.check(1, 5, 1, 0) is None
    with pytest.raises(InvalidProducerEpochError):
        state.check(1, 4, 0, 2)  # a retry of the fenced epoch


def test_idle_producers_expire() -> None:
    state = state_after((0, 1))
    state.expire(NOW_MS + 1000, 1000)
    assert len(state) == 1
    state.expire(NOW_MS + 1001, 1000)
    assert len(state) == 0


def test_the_number_of_producers_is_limited_and_idle_ones_are_dropped_first() -> None:
    state = ProducerStates(16)
    for producer_id in range(50):
        state.update(producer_id, 0, BatchEntry(0, 0, 0, 0, -1), NOW_MS + producer_id)
        assert len(state) <= 16
    assert state.get(49) is not None
    assert state.get(0) is None


def test_a_snapshot_restores_the_whole_producer_state() -> None:
    state = state_after((0, 3), (3, 1), epoch=2, producer_id=2**40)
    content = state.encode(99)
    restored = ProducerStates(100)
    assert restored.restore(content, 99)
    assert restored.encode(99) == content
    found = restored.check(2**40, 2, 0, 2)
    assert found is not None
    assert found.last_offset == 2


def test_a_damaged_snapshot_changes_nothing() -> None:
    content = state_after((0, 3)).encode(99)
    state = state_after((0, 1), producer_id=8)
    assert not state.restore(None, 99)
    assert not state.restore(content, 98)
    for position in range(len(content)):
        damaged = bytearray(content)
        damaged[position] ^= 4
        assert not state.restore(bytes(damaged), 99)
        assert not state.restore(content[:position], 99)
    assert state.get(8) is not None


def test_the_log_refuses_a_failed_batch_before_writing_it() -> None:
    log = open_log(MemoryFileSystem())
    append(log, batch_of(3, producer_id=1, producer_epoch=0, base_sequence=0))
    size = log.size_bytes
    with pytest.raises(OutOfOrderSequenceError):
        append(log, batch_of(1, producer_id=1, producer_epoch=0, base_sequence=9))
    assert (log.size_bytes, log.log_end_offset) == (size, 3)
    assert log.producer_count == 1
