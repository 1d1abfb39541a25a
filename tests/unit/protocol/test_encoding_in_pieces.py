"""A response that is encoded in pieces is the same bytes as one that is encoded at once."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest

from headrace.protocol import pieces
from headrace.protocol.codec import Message, Structure
from headrace.protocol.frame import response_class
from headrace.protocol.messages import API_MODULES
from headrace.protocol.messages.fetch import (
    AbortedTransaction,
    FetchableTopicResponse,
    FetchResponse,
    PartitionData,
)
from headrace.protocol.messages.list_offsets import (
    ListOffsetsPartitionResponse,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from headrace.protocol.messages.list_transactions import ListTransactionsResponse, TransactionState
from headrace.protocol.pieces import PIECE_ELEMENTS, encode_in_pieces, is_long

PREFIX = b"head"
SIMPLE: dict[str, Any] = {
    "int": 7,
    "str": "text",
    "bytes": bytes(16),
    "bool": True,
    "float": 1.5,
    "Payload": b"records",
    "Buffer": b"bytes",
}


def filled(kind: type[Structure], lengths: Iterator[int]) -> Any:
    """Make a structure whose fields all have values, and whose lists have these lengths, each in turn."""
    known = vars(sys.modules[kind.__module__])

    def value(of: str) -> Any:
        of = of.removesuffix(" | None")
        if of.startswith("list["):
            return [value(of[len("list[") : -1]) for _ in range(next(lengths))]
        return SIMPLE[of] if of in SIMPLE else filled(known[of], lengths)

    slots: tuple[str, ...] = kind.__slots__
    return kind(**{name: value(kind.__annotations__[name]) for name in slots})


def joined(message: Message, version: int) -> tuple[bytes, int, list[int]]:
    """Encode in pieces; return the bytes, the number of buffers, and the sizes of the pieces."""
    sizes: list[int] = []
    work = encode_in_pieces(message, version, PREFIX)
    while True:
        try:
            sizes.append(next(work))
        except StopIteration as end:
            return b"".join(end.value), len(end.value), sizes


def whole(message: Message, version: int) -> bytes:
    parts: list[Any] = message.encode(version, PREFIX)
    return b"".join(parts)


@pytest.mark.slow
@pytest.mark.parametrize("key", API_MODULES)
def test_every_response_is_the_same_in_pieces(key: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pieces, "PIECE_ELEMENTS", 5)
    cls = response_class(key)
    assert cls is not None
    for first in range(4):
        numbers = count(first)
        message = filled(cls, (3 + next(numbers) * 5 % 7 for _ in count()))
        for version in range(cls.MIN_VERSION, cls.MAX_VERSION + 1):
            assert joined(message, version)[0] == whole(message, version)


def offsets(topics: int, partitions: int) -> ListOffsetsResponse:
    return ListOffsetsResponse(
        topics=[
            ListOffsetsTopicResponse(
                name=f"t{number}",
                partitions=[
                    ListOffsetsPartitionResponse(partition_index=index, offset=index)
                    for index in range(partitions)
                ],
            )
            for number in range(topics)
        ]
    )


@pytest.mark.parametrize(
    ("topics", "partitions"), [(10_000, 0), (10_000, 1), (1, 31_000), (3, 5_000), (20, 900)]
)
@pytest.mark.parametrize("version", [1, 9])
def test_the_size_of_every_piece_is_limited(topics: int, partitions: int, version: int) -> None:
    message = offsets(topics, partitions)
    assert is_long(message)
    encoded, _, sizes = joined(message, version)
    assert encoded == whole(message, version)
    assert max(sizes) <= PIECE_ELEMENTS
    assert len(sizes) < 2 + 2 * topics * (partitions + 1) // PIECE_ELEMENTS + topics // 10


def test_only_messages_with_many_elements_are_long() -> None:
    assert not is_long(offsets(1, 900))
    assert not is_long(ListTransactionsResponse(unknown_state_filters=["x"] * 10_000))
    assert is_long(offsets(1, 1000))


def test_records_stay_buffers_of_their_own() -> None:
    records = b"records" * 100
    aborted = [AbortedTransaction(producer_id=7, first_offset=9)] * (2 * PIECE_ELEMENTS)
    parts = [PartitionData(partition_index=index, records=records) for index in range(3_000)]
    parts[5].aborted_transactions = aborted
    message = FetchResponse(responses=[FetchableTopicResponse(topic="t", partitions=parts)])
    for version in (4, 12):
        encoded, buffers, _ = joined(message, version)
        assert encoded == whole(message, version)
        assert buffers < 2 * len(parts) + 10


def test_a_long_list_before_the_one_that_is_divided() -> None:
    message = ListTransactionsResponse(
        unknown_state_filters=["x" * 50] * 10_000,
        transaction_states=[TransactionState(transactional_id=f"t{n}") for n in range(3_000)],
    )
    encoded, _, sizes = joined(message, 1)
    assert encoded == whole(message, 1)
    assert max(sizes) <= PIECE_ELEMENTS
