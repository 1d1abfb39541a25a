"""The receive buffer compared with a plain list of frames, under any division of the bytes into reads."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.server.connections.budget import MemoryBudget
from headrace.server.connections.framing import BadFrameError, ReceiveBuffer
from headrace.server.limits import KIB, MIB, ServerLimits
from tests.unit.server.fakes import PRODUCE, framed


class Owner:
    def memory_available(self) -> None:
        raise AssertionError("no connection waits")


def buffer_of(limits: ServerLimits) -> tuple[ReceiveBuffer, MemoryBudget]:
    budget = MemoryBudget(limits.memory_budget_bytes)
    return ReceiveBuffer(limits, budget, Owner()), budget


def feed(buffer: ReceiveBuffer, data: bytes, sizes: list[int]) -> list[bytes]:
    """Receive `data` in reads of at most these sizes, repeatedly."""
    frames: list[bytes] = []
    position = turn = 0
    while position < len(data):
        space = buffer.free_space()
        assert len(space) > 0
        count = min(len(space), sizes[turn % len(sizes)], len(data) - position)
        space[:count] = data[position : position + count]
        buffer.received(count)
        position += count
        turn += 1
        while (frame := buffer.next_frame()) is not None:
            frames.append(bytes(frame))
        assert buffer.make_room()
        if turn % 7 == 0:
            buffer.shrink()
    return frames


@given(
    bodies=st.lists(st.integers(0, 3000), max_size=30),
    reads=st.lists(st.integers(1, 5000), min_size=1, max_size=10),
    initial=st.sampled_from([16, 64, 1000, 4096]),
)
def test_received_frames_equal_the_sent_frames(
    bodies: list[int], reads: list[int], initial: int
) -> None:
    limits = ServerLimits(initial_buffer_bytes=initial, busy_buffer_bytes=4 * initial)
    buffer, budget = buffer_of(limits)
    rng = random.Random(1)
    sent = [framed(rng.randbytes(size), PRODUCE) for size in bodies]
    received = feed(buffer, b"".join(sent), reads)
    assert received == [frame[4:] for frame in sent]
    buffer.close()
    buffer.close()
    assert budget.used == 0


def test_the_buffer_grows_only_with_received_bytes() -> None:
    limits = ServerLimits()
    buffer, _ = buffer_of(limits)
    start = framed(b"x" * 10 * MIB, PRODUCE)
    assert feed(buffer, start[: 10 * KIB], [1000]) == []
    assert buffer.capacity == limits.initial_buffer_bytes
    feed(buffer, start[10 * KIB : MIB], [1 << 30])
    assert MIB <= buffer.capacity <= 2 * MIB


def test_a_busy_connection_gets_larger_reads_up_to_a_limit() -> None:
    limits = ServerLimits()
    buffer, _ = buffer_of(limits)
    request = framed(b"x" * 16_000, PRODUCE)
    assert len(feed(buffer, request * 300, [1 << 30])) == 300
    assert buffer.capacity == limits.busy_buffer_bytes
    buffer.shrink()
    buffer.shrink()
    assert buffer.capacity == limits.initial_buffer_bytes


def test_garbage_is_noticed_with_the_first_four_bytes() -> None:
    for garbage in (b"GET ", b"\x16\x03\x01\x02", b"\xff\xff\xff\xff", b"\x00\x00\x00\x01"):
        buffer, _ = buffer_of(ServerLimits())
        assert feed(buffer, garbage[:3], [1]) == []
        with pytest.raises(BadFrameError):
            feed(buffer, garbage[3:], [1])


@pytest.mark.parametrize("most", [512 * KIB, MIB, 4 * MIB])
def test_before_authentication_no_request_may_be_large(most: int) -> None:
    for api_key in (PRODUCE, b"\0\x24"):
        buffer, _ = buffer_of(ServerLimits())
        buffer.bound(tokens=False, most=most)
        with pytest.raises(BadFrameError, match="before authentication"):
            feed(buffer, (most + 1).to_bytes(4) + api_key, [4])
    buffer, _ = buffer_of(ServerLimits())
    buffer.bound(tokens=False, most=most)
    feed(buffer, most.to_bytes(4) + b"\0\x24", [4])
    buffer, _ = buffer_of(ServerLimits())
    buffer.bound(tokens=False, most=most)
    buffer.bound(tokens=False, most=0)
    feed(buffer, (50 * MIB).to_bytes(4) + PRODUCE, [4])


def test_tokens_may_be_shorter_than_requests() -> None:
    buffer, _ = buffer_of(ServerLimits())
    with pytest.raises(BadFrameError):
        feed(buffer, b"\0\0\0\x01x", [5])
    buffer, _ = buffer_of(ServerLimits())
    buffer.bound(tokens=True, most=1024)
    assert feed(buffer, b"\0\0\0\x01x\0\0\0\0\0\0\0\x02yz", [3]) == [b"x", b"", b"yz"]
    for size in (b"\xff\xff\xff\xff", b"\0\0\x04\x01", b"\x7f\xff\xff\xff"):
        with pytest.raises(BadFrameError):
            feed(buffer, size, [4])
