"""Requests about the offsets of very many partitions, divided into pieces that are handled in order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import copy
from typing import Any, Final, Protocol, TypeVar

OFFSETS_A_PIECE: Final = 1_000
"""The number of partitions and topics in one piece."""


class TopicPart(Protocol):
    """A topic of a request or of a response, with partitions."""

    name: str
    partitions: list[Any]


T = TypeVar("T", bound=TopicPart)


def is_long(topics: Sequence[TopicPart]) -> bool:
    """Return whether topics have to be divided."""
    return len(topics) + sum(len(topic.partitions) for topic in topics) > OFFSETS_A_PIECE


def in_pieces(topics: Sequence[T]) -> Iterator[list[T]]:
    """Divide topics into lists, each with at most `OFFSETS_A_PIECE` partitions and topics together."""
    piece: list[T] = []
    room = OFFSETS_A_PIECE
    for topic in topics:
        partitions = topic.partitions
        while True:
            part = copy(topic)
            part.partitions, partitions = partitions[:room], partitions[room:]
            piece.append(part)
            room -= len(part.partitions) + 1
            if room <= 0:
                yield piece
                piece, room = [], OFFSETS_A_PIECE
            if not partitions:
                break
    if piece:
        yield piece


def joined(first: list[T], second: list[T]) -> list[T]:
    """Join the topics of the responses to two pieces. A topic that was divided becomes one again."""
    if first and second and first[-1].name == second[0].name:
        first[-1].partitions += second[0].partitions
        second = second[1:]
    return first + second
