"""Updating the state of producers with batches as they are in a log: in a recovery, and in a follower.

A leader knows more than the batch when it appends one: whether the batch is a retry, and the marker that it writes.
"""

from __future__ import annotations

from collections.abc import Callable

from headrace.core.log.control_batch import read_marker
from headrace.core.log.producers.producer_entry import BatchEntry
from headrace.core.log.producers.producer_state import SEQUENCE_MASK, ProducerStates
from headrace.records.batch import (
    ATTRIBUTES,
    BASE_OFFSET,
    BASE_SEQUENCE,
    CONTROL_FLAG,
    LAST_OFFSET_DELTA,
    LOG_APPEND_TIME_FLAG,
    MAX_TIMESTAMP,
    PRODUCER_EPOCH,
    PRODUCER_ID,
    RECORDS_COUNT,
    TRANSACTIONAL_FLAG,
    HeaderFields,
)
from headrace.types import NO_TIMESTAMP, Buffer


def is_marker(header: HeaderFields) -> bool:
    """Return whether a batch may be a marker: a control batch of a producer, without a sequence."""
    return (
        header[PRODUCER_ID] >= 0
        and header[BASE_SEQUENCE] < 0
        and bool(header[ATTRIBUTES] & CONTROL_FLAG)
    )


def replay(
    producers: ProducerStates,
    header: HeaderFields,
    read: Callable[[], Buffer],
    written_ms: int,
) -> None:
    """Update the producers with a batch of the log.

    Args:
        producers: The state after all batches before this one.
        header: The header of the batch.
        read: Returns the whole batch. Called for markers only.
        written_ms: The time of the append, in milliseconds.

    Raises:
        CorruptRecordError: The record of a marker cannot be decoded.
    """
    producer_id, sequence, base_offset = (
        header[PRODUCER_ID],
        header[BASE_SEQUENCE],
        header[BASE_OFFSET],
    )
    if producer_id < 0:
        return
    if is_marker(header):
        marker = read_marker(read())
        if marker is not None:
            producers.end_transaction(marker, base_offset, written_ms)
        return
    attributes, delta = header[ATTRIBUTES], header[LAST_OFFSET_DELTA]
    # A batch that compaction left without records belongs to a transaction that has ended.
    transactional = bool(attributes & TRANSACTIONAL_FLAG and header[RECORDS_COUNT])
    if sequence < 0 and not transactional:
        return
    batch = BatchEntry(
        sequence,
        (sequence + delta) & SEQUENCE_MASK,
        base_offset,
        base_offset + delta,
        header[MAX_TIMESTAMP] if attributes & LOG_APPEND_TIME_FLAG else NO_TIMESTAMP,
    )
    producers.update(
        producer_id, header[PRODUCER_EPOCH], batch, written_ms, transactional=transactional
    )
