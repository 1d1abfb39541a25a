"""The records of `__transaction_state`: values of the transaction coordinator, and their encoding in Kafka's format.

A key begins with its version in two bytes, 0. A value begins with its version in two bytes, 1; its tagged fields have
the previous and the next producer id, and the transaction version of the client. Kafka has the last epoch in memory
only. Here the record header `headrace.last.epoch` stores it, so that the coordinator recognizes a retry of
InitProducerId, or of an EndTxn that raises the epoch, after a restart too. Kafka ignores the header.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from headrace.core.coordinator.transaction.states import NEXT, STATUS, TransactionState
from headrace.errors import CorruptRecordError, HeadraceError
from headrace.protocol.codec import Message
from headrace.protocol.messages.transaction_log_record import (
    PartitionsSchema,
    TransactionLogKey,
    TransactionLogValue,
)
from headrace.records.builder import build_batch
from headrace.records.reader import Record, read_records
from headrace.types import NO_PRODUCER_ID, Buffer, FileRange, TopicPartition

KEY_VERSION: Final = 0
VALUE_VERSION: Final = 1
LAST_EPOCH_HEADER: Final = "headrace.last.epoch"
NO_EPOCH: Final = -1
LAST_EPOCH: Final = 32_767
"""The largest epoch of a producer id. No producer receives it: the coordinator uses it to fence the producer before."""

EPOCH_BUMP: Final = 2
"""The first transaction version in which every end of a transaction raises the producer epoch."""

_STATES: Final = {status: state for state, status in STATUS.items()}
_NO_PARTITIONS: Final[frozenset[TopicPartition]] = frozenset()


class TransactionMetadata(NamedTuple):
    """The stored state of one transactional id."""

    producer_id: int
    producer_epoch: int
    timeout_ms: int
    state: TransactionState
    last_update_ms: int
    partitions: frozenset[TopicPartition] = _NO_PARTITIONS
    """The partitions of the transaction that is open or being completed."""
    start_ms: int = -1
    """The start of the open or last transaction, in ms since 1970; -1 without."""
    previous_producer_id: int = NO_PRODUCER_ID
    """The previous producer id of the transactional id, whose epochs are used up; -1 without one."""
    last_epoch: int = NO_EPOCH
    """The previous epoch, with which the producer may repeat the request that raised the epoch (KIP-360, KIP-890).

    -1 if the producer did not request the new epoch itself, or has begun a transaction with it."""
    next_producer_id: int = NO_PRODUCER_ID
    """The producer id after the end of this transaction, with epoch 0, because the epochs of this id are used up; else
    -1."""
    client_transaction_version: int = 0
    """The transaction version of the producer: 2 if every transaction has its own producer epoch."""

    @property
    def bumps(self) -> bool:
        """Whether the end of the last transaction raises the epoch (KIP-890)."""
        return self.client_transaction_version >= EPOCH_BUMP

    def to(self, state: TransactionState, now_ms: int, **changes: object) -> TransactionMetadata:
        """Return a copy in another state, which the table `NEXT` has to allow, with other changed fields."""
        assert state in NEXT[self.state], f"{self.state} does not lead to {state}"
        return self._replace(state=state, last_update_ms=now_ms, **changes)  # type: ignore[arg-type]  # fields by name


class TransactionRecord(NamedTuple):
    """A record with the new state of a transactional id; `metadata` is None to delete the id."""

    transactional_id: str
    metadata: TransactionMetadata | None


def by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    """Return the partition numbers of each topic. Topics and numbers are in ascending order."""
    topics: dict[str, list[int]] = {}
    for topic, partition in sorted(partitions):
        topics.setdefault(topic, []).append(partition)
    return topics


# --- to bytes ---


def encode_records(records: Sequence[TransactionRecord], now_ms: int) -> bytes:
    """Return one record batch."""
    return build_batch([(*_encode(record), now_ms) for record in records])


def _encode(
    record: TransactionRecord,
) -> tuple[bytes, bytes | None, list[tuple[str, bytes | None]]]:
    key = _bytes(KEY_VERSION, TransactionLogKey(transactional_id=record.transactional_id))
    metadata = record.metadata
    if metadata is None:
        return key, None, []
    headers: list[tuple[str, bytes | None]] = []
    if metadata.last_epoch != NO_EPOCH:
        headers.append((LAST_EPOCH_HEADER, str(metadata.last_epoch).encode()))
    return key, _value(metadata), headers


def _bytes(version: int, message: Message) -> bytes:
    payloads = message.encode(version, version.to_bytes(2, "big"))
    return b"".join(payload for payload in payloads if not isinstance(payload, FileRange))


def _value(metadata: TransactionMetadata) -> bytes:
    partitions = [
        PartitionsSchema(topic=topic, partition_ids=numbers)
        for topic, numbers in by_topic(metadata.partitions).items()
    ]
    value = TransactionLogValue(
        producer_id=metadata.producer_id,
        previous_producer_id=metadata.previous_producer_id,
        next_producer_id=metadata.next_producer_id,
        producer_epoch=metadata.producer_epoch,
        transaction_timeout_ms=metadata.timeout_ms,
        transaction_status=STATUS[metadata.state],
        transaction_partitions=None if metadata.state is TransactionState.EMPTY else partitions,
        transaction_last_update_timestamp_ms=metadata.last_update_ms,
        transaction_start_timestamp_ms=metadata.start_ms,
        client_transaction_version=metadata.client_transaction_version,
    )
    return _bytes(VALUE_VERSION, value)


# --- from bytes ---


def decode_records(batches: Buffer) -> Iterator[tuple[int, TransactionRecord | None]]:
    """Yield (offset, record) of every record; None for a record with an unknown key version.

    Raises:
        CorruptRecordError: A key or value does not have the layout of its version.
    """
    for record in read_records(batches):
        try:
            decoded = _decode(record)
        except (HeadraceError, ValueError, KeyError, IndexError) as error:
            message = f"record at offset {record.offset} of __transaction_state: {error}"
            raise CorruptRecordError(message) from error
        yield record.offset, decoded


def _decode(record: Record) -> TransactionRecord | None:
    if record.key is None or len(record.key) < 2:
        return None
    if int.from_bytes(record.key[:2], "big") != KEY_VERSION:
        return None
    key, _ = TransactionLogKey.decode(memoryview(record.key), 2, KEY_VERSION)
    return TransactionRecord(key.transactional_id, _metadata(record))


def _metadata(record: Record) -> TransactionMetadata | None:
    if record.value is None:
        return None
    version = int.from_bytes(record.value[:2], "big")
    if len(record.value) < 2 or version > VALUE_VERSION:
        raise CorruptRecordError(f"value version {version} is not known")
    value, _ = TransactionLogValue.decode(memoryview(record.value), 2, version)
    state = _STATES[value.transaction_status]
    if state is TransactionState.DEAD:
        return None
    last_epoch = dict(record.headers).get(LAST_EPOCH_HEADER)
    return TransactionMetadata(
        producer_id=value.producer_id,
        producer_epoch=value.producer_epoch,
        timeout_ms=value.transaction_timeout_ms,
        state=state,
        last_update_ms=value.transaction_last_update_timestamp_ms,
        partitions=frozenset(
            TopicPartition(topic.topic, number)
            for topic in value.transaction_partitions or []
            for number in topic.partition_ids
        ),
        start_ms=value.transaction_start_timestamp_ms,
        previous_producer_id=value.previous_producer_id,
        last_epoch=NO_EPOCH if last_epoch is None else int(last_epoch),
        next_producer_id=value.next_producer_id,
        client_transaction_version=value.client_transaction_version,
    )
