"""Claims that do not expire: the last claim of each writer is also a record in a compacted topic.

Brokers delete the offsets of an inactive group, and with them the claim. The record, written in the same transaction,
remains. It is read only if the offset is gone, because the whole topic must be read to find it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any, Final

from headrace.clients.blocking import (
    EARLIEST,
    LATEST,
    READ_COMMITTED,
    BlockingClient,
    FetchPosition,
)
from headrace.clients.flows.offsets import OffsetAndMetadata
from headrace.clients.producer.many import Rows
from headrace.errors import ApiError, HeadraceError
from headrace.spark.source.stalled import stalled
from headrace.types import TopicPartition

_PAUSE_S: Final = 0.1


def claim_rows(topic: str, name: str, claim: OffsetAndMetadata) -> Rows:
    """Return the record of a claim."""
    value = f"{claim.offset} {claim.metadata}".encode()
    now_ms = time.time_ns() // 1_000_000
    return Rows(topic, [(name.encode(), value, (), now_ms, 0)], [0])


def kept_claim(client: BlockingClient, topic: str, name: str) -> OffsetAndMetadata | None:
    """Return the last claim of a writer whose transaction was committed; None if there is none.

    The caller owns the writer's transactional id, and has ended all its earlier transactions. So no claim of this
    writer is pending.

    Raises:
        HeadraceError: The transaction of another writer's claim was open for too long, or the topic cannot be read.
    """
    found: OffsetAndMetadata | None = None
    for batch in _records(client, TopicPartition(topic, 0)):
        keys, values = (batch.column(each).to_pylist() for each in ("key", "value"))
        for key, value in zip(keys, values, strict=True):
            if key == name.encode() and value is not None:
                offset, _, metadata = value.decode().partition(" ")
                found = OffsetAndMetadata(int(offset), metadata)
    return found


def _records(client: BlockingClient, partition: TopicPartition) -> Iterator[Any]:
    """Yield the committed records up to the present end of the log. Open transactions of other writers delay that."""
    from headrace.spark.source.arrow import RangeDecoder
    from headrace.spark.source.schema import topic_schema

    start, end = (
        client.list_offsets({partition: at})[partition].offset for at in (EARLIEST, LATEST)
    )
    decoder = RangeDecoder(partition, start, end, topic_schema(include_headers=False))
    deadline = time.monotonic() + client.config.request_timeout_ms / 1000
    while decoder.position < end:
        at = decoder.position
        position = {partition: FetchPosition(at)}
        fetched = client.fetch(position, isolation_level=READ_COMMITTED)[partition]
        if fetched.error and not fetched.error.retriable:
            raise ApiError.for_code(fetched.error, f"reading {partition}")
        yield from decoder.feed(fetched.records, fetched.aborted_transactions)
        if decoder.position > at:
            continue
        if not fetched.error and not fetched.records and fetched.last_stable_offset >= end:
            break  # compaction has removed all records up to the end
        if time.monotonic() > deadline and fetched.error:
            text = f"{partition}, the topic with the claims of exactly-once writes, cannot be read"
            raise stalled(text, fetched)
        if time.monotonic() > deadline:
            raise HeadraceError(
                f"{partition}, the topic with the claims of exactly-once writes, cannot be read to its end: a write "
                "that was killed during its claim has left a transaction open, until the write is started again or the "
                "transaction times out (kafka.transaction.timeout.ms). Start the query again after that"
            )
        time.sleep(_PAUSE_S)
    yield from decoder.finish()
