"""The records of `__consumer_offsets`: values of the group coordinator, and their encoding in Kafka's format.

A key begins with two bytes that name its kind: 0 and 1 are OffsetCommitKey, 2 is GroupMetadataKey. A value begins with
two bytes that are its version. Both kinds of value are written in version 3, as Kafka 4 does, so that its tools can
print them. A group whose join phase is complete but whose assignment has not arrived yet is marked with the
record header `headrace.state`; Kafka has no such record (it keeps that phase in memory only) and ignores the header.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from headrace.core.coordinator.pace import MILLISECOND, Pace
from headrace.core.coordinator.state.classic_states import GroupState
from headrace.core.coordinator.state.consumer_records import (
    ConsumerRecord,
    decode_consumer_record,
    encode_consumer_record,
)
from headrace.core.log import Marker, build_marker, read_marker
from headrace.errors import CorruptRecordError, HeadraceError
from headrace.protocol.codec import Message
from headrace.protocol.messages.group_metadata_record import (
    GroupMetadataKey,
    GroupMetadataValue,
    MemberMetadata,
)
from headrace.protocol.messages.offset_commit_record import OffsetCommitKey, OffsetCommitValue
from headrace.records.batch import BatchHeader, check_batch, iterate_headers
from headrace.records.builder import BatchBuilder, build_batch
from headrace.records.reader import Record, read_records, slices_of
from headrace.types import Buffer, FileRange

OFFSET_COMMIT_KIND = 1
GROUP_METADATA_KIND = 2
KEY_VERSION = 0
OFFSET_COMMIT_VALUE_VERSION = 3
GROUP_METADATA_VALUE_VERSION = 3
LAST_VALUE_VERSION = 4
STATE_HEADER = "headrace.state"
READ_NS: Final = 350
"""The time to read a record without decoding its key and value, in nanoseconds."""
BATCH_US: Final = 3
"""The time to read a batch apart from its records, in microseconds."""
RECORD_US: Final = 5
"""The time to decode and replay a record, or a member in one, in microseconds."""
PENDING_US: Final = 4
"""The further time for an offset of a transaction, which is also applied when the transaction ends."""


class CommittedOffset(NamedTuple):
    """A committed offset of one partition."""

    offset: int
    leader_epoch: int
    metadata: str
    commit_timestamp_ms: int
    expire_timestamp_ms: int = -1
    """The time at which the offset expires regardless of the retention, in ms; -1: none. Kafka before 2.1 wrote it."""


class OffsetCommit(NamedTuple):
    """Record: the offset of a group for a partition; None deletes it."""

    group_id: str
    topic: str
    partition: int
    committed: CommittedOffset | None


class PendingOffset(NamedTuple):
    """Record: an offset that takes effect when the producer's transaction is committed.

    All pending offsets of a batch belong to one producer. A marker ends the transaction, as in every partition.
    """

    producer_id: int
    producer_epoch: int
    commit: OffsetCommit


class StoredMember(NamedTuple):
    """A member of a generation."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    subscription: bytes
    """The member's metadata for the generation's protocol; opaque, except for protocol type "consumer"."""
    assignment: bytes
    """The assignment that the leader computed for the member; opaque."""


class Generation(NamedTuple):
    """One generation of a group, the durable part of it."""

    number: int
    state: GroupState
    """EMPTY, COMPLETING_REBALANCE or STABLE; the other states are not stored."""
    protocol_type: str
    protocol_name: str | None
    leader: str | None
    state_timestamp_ms: int
    members: tuple[StoredMember, ...] = ()


class GenerationRecord(NamedTuple):
    """Record: the current generation of a group; None deletes the group."""

    group_id: str
    generation: Generation | None


GroupRecord = OffsetCommit | GenerationRecord | ConsumerRecord | PendingOffset | Marker


# --- to bytes ---


def encode_records(records: Sequence[GroupRecord], now_ms: int) -> bytes:
    """Return one record batch."""
    first = records[0]
    if isinstance(first, Marker):
        return build_marker(first, now_ms)
    if isinstance(first, PendingOffset):
        builder = BatchBuilder(max_bytes=1 << 31, transactional=True)
        for record in records:
            assert isinstance(record, PendingOffset), (
                "a batch belongs to one transaction, or to none"
            )
            builder.append(*_encode(record.commit), now_ms)
        return builder.build(first.producer_id, first.producer_epoch)
    return build_batch([(*_encode(record), now_ms) for record in records])


def _encode(record: GroupRecord) -> tuple[bytes, bytes | None, list[tuple[str, bytes | None]]]:
    if isinstance(record, OffsetCommit):
        offset_key = OffsetCommitKey(
            group=record.group_id, topic=record.topic, partition=record.partition
        )
        value = None if record.committed is None else _offset_value(record.committed)
        return _bytes(OFFSET_COMMIT_KIND, KEY_VERSION, offset_key), value, []
    assert not isinstance(record, PendingOffset | Marker), "these have batches of their own"
    if not isinstance(record, GenerationRecord):
        return *encode_consumer_record(record), []
    group_key = GroupMetadataKey(group=record.group_id)
    value = None if record.generation is None else _group_value(record.generation)
    return (
        _bytes(GROUP_METADATA_KIND, KEY_VERSION, group_key),
        value,
        _state_headers(record.generation),
    )


def _bytes(prefix: int, version: int, message: Message) -> bytes:
    payloads = message.encode(version, prefix.to_bytes(2, "big"))
    return b"".join(payload for payload in payloads if not isinstance(payload, FileRange))


def _offset_value(committed: CommittedOffset) -> bytes:
    value = OffsetCommitValue(
        offset=committed.offset,
        leader_epoch=committed.leader_epoch,
        metadata=committed.metadata,
        commit_timestamp=committed.commit_timestamp_ms,
    )
    return _bytes(OFFSET_COMMIT_VALUE_VERSION, OFFSET_COMMIT_VALUE_VERSION, value)


def _group_value(generation: Generation) -> bytes:
    value = GroupMetadataValue(
        protocol_type=generation.protocol_type,
        generation=generation.number,
        protocol=generation.protocol_name,
        leader=generation.leader,
        current_state_timestamp=generation.state_timestamp_ms,
        members=[
            MemberMetadata(
                member_id=member.member_id,
                group_instance_id=member.instance_id,
                client_id=member.client_id,
                client_host=member.client_host,
                rebalance_timeout=member.rebalance_timeout_ms,
                session_timeout=member.session_timeout_ms,
                subscription=member.subscription,
                assignment=member.assignment,
            )
            for member in generation.members
        ],
    )
    return _bytes(GROUP_METADATA_VALUE_VERSION, GROUP_METADATA_VALUE_VERSION, value)


def _state_headers(generation: Generation | None) -> list[tuple[str, bytes | None]]:
    if generation is None or generation.state is not GroupState.COMPLETING_REBALANCE:
        return []
    return [(STATE_HEADER, generation.state.value.encode())]


# --- from bytes ---


def decode_records(batches: Buffer) -> Iterator[tuple[int, GroupRecord | None]]:
    """Yield (offset, record) of every record; None for an unknown kind of record.

    Raises:
        CorruptRecordError: A key or value does not have the layout of its version.
    """
    for position, header in iterate_headers(batches):
        if header.is_transactional:
            yield from _decode_transactional(batches, position, header)
        else:
            batch = memoryview(batches)[position : position + header.size]
            for record in read_records(batch):
                yield record.offset, _checked(record)


def decode_latest(batches: Buffer) -> Iterator[tuple[int, GroupRecord | None] | None]:
    """Yield like `decode_records`, but only the last record of each key, as if the batches had been compacted.

    Most records are commits that later commits replace; decoding them would take most of the loading time. All records
    of transactions are yielded, because their order matters; only the records between them are compacted.

    None in place of the pair is a pause: about a millisecond of work has been done.
    """
    pace = Pace()
    latest: dict[bytes | None, Record] = {}
    for position, header in iterate_headers(batches):
        if header.is_transactional:
            yield from _paced(_decode_compacted(latest), pace)
            latest.clear()
            yield from _paced(_decode_transactional(batches, position, header), pace)
        else:
            slices = slices_of(check_batch(batches, position), batches, position)
            while records := slices.next_slice():
                for record in records:
                    # The key moves to the end, because its new record has a larger offset.
                    latest.pop(record.key, None)
                    latest[record.key] = record
                pace.done_us += len(records) * READ_NS // 1_000
                if pace.done_us >= MILLISECOND:
                    yield from pace.pauses()
        pace.done_us += BATCH_US
        if pace.done_us >= MILLISECOND:
            yield from pace.pauses()
    yield from _paced(_decode_compacted(latest), pace)


def _decode_transactional(
    batches: Buffer, position: int, header: BatchHeader
) -> Iterator[tuple[int, GroupRecord | None]]:
    if header.is_control:
        yield header.last_offset, read_marker(memoryview(batches)[position:])
        return
    slices = slices_of(header, batches, position)
    while records := slices.next_slice():
        for record in records:
            commit = _checked(record)
            if isinstance(commit, OffsetCommit) and commit.committed is not None:
                pending = PendingOffset(header.producer_id, header.producer_epoch, commit)
                yield record.offset, pending
            else:
                yield record.offset, None


def _decode_compacted(
    latest: Mapping[bytes | None, Record],
) -> Iterator[tuple[int, GroupRecord | None]]:
    for record in latest.values():
        yield record.offset, _checked(record)


def _paced(
    decoded: Iterable[tuple[int, GroupRecord | None]], pace: Pace
) -> Iterator[tuple[int, GroupRecord | None] | None]:
    """Yield decoded records, which the caller replays, and a pause after about each millisecond."""
    for offset, record in decoded:
        yield offset, record
        pace.done_us += RECORD_US
        if isinstance(record, GenerationRecord) and record.generation is not None:
            pace.done_us += len(record.generation.members) * RECORD_US
        elif isinstance(record, PendingOffset):
            pace.done_us += PENDING_US
        if pace.done_us >= MILLISECOND:
            yield from pace.pauses()


def _checked(record: Record) -> GroupRecord | None:
    try:
        return _decode(record)
    except (HeadraceError, ValueError, IndexError) as error:
        message = f"record at offset {record.offset} of __consumer_offsets: {error}"
        raise CorruptRecordError(message) from error


def _decode(record: Record) -> GroupRecord | None:
    if record.key is None or len(record.key) < 2:
        return None
    key = memoryview(record.key)
    kind = int.from_bytes(key[:2], "big")
    if kind <= OFFSET_COMMIT_KIND:
        offset_key, _ = OffsetCommitKey.decode(key, 2, KEY_VERSION)
        return OffsetCommit(
            offset_key.group, offset_key.topic, offset_key.partition, _committed(record.value)
        )
    if kind == GROUP_METADATA_KIND:
        group_key, _ = GroupMetadataKey.decode(key, 2, KEY_VERSION)
        return GenerationRecord(group_key.group, _generation(record))
    return decode_consumer_record(kind, key, record.value)


def _value_version(value: Buffer) -> int:
    version = int.from_bytes(value[:2], "big")
    if len(value) < 2 or version > LAST_VALUE_VERSION:
        raise CorruptRecordError(f"value version {version} is not known")
    return version


def _committed(value: Buffer | None) -> CommittedOffset | None:
    if value is None:
        return None
    version = _value_version(value)
    decoded, _ = OffsetCommitValue.decode(memoryview(value), 2, version)
    return CommittedOffset(
        decoded.offset,
        decoded.leader_epoch,
        decoded.metadata,
        decoded.commit_timestamp,
        decoded.expire_timestamp,
    )


def _generation(record: Record) -> Generation | None:
    if record.value is None:
        return None
    version = _value_version(record.value)
    value, _ = GroupMetadataValue.decode(memoryview(record.value), 2, version)
    completing = any(name == STATE_HEADER for name, _ in record.headers)
    return Generation(
        number=value.generation,
        state=_stored_state(members=bool(value.members), completing=completing),
        protocol_type=value.protocol_type,
        protocol_name=value.protocol,
        leader=value.leader,
        state_timestamp_ms=value.current_state_timestamp,
        members=tuple(
            StoredMember(
                member.member_id,
                member.group_instance_id,
                member.client_id,
                member.client_host,
                # Version 0 has no rebalance timeout: the session timeout is used for both.
                member.session_timeout
                if member.rebalance_timeout < 0
                else member.rebalance_timeout,
                member.session_timeout,
                bytes(member.subscription),
                bytes(member.assignment),
            )
            for member in value.members
        ),
    )


def _stored_state(*, members: bool, completing: bool) -> GroupState:
    if not members:
        return GroupState.EMPTY
    return GroupState.COMPLETING_REBALANCE if completing else GroupState.STABLE
