"""The records of a batch that compaction keeps.

A record stays if no newer record has its key. A tombstone, a record without a value, deletes its key. It stays too, so
that readers learn of the deletion, until `delete.retention.ms` after the first round of compaction that found it
(KIP-534). That time, the delete horizon, is written into the batch: attribute bit 6 says that the base timestamp is the
horizon, and the timestamp deltas of the records count from there.

Offsets never change, see `headrace.records.rewriting`. A batch that has lost all its records is dropped. If something
depends on it (`keep_empty`), its header stays.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from headrace.core.log.cleaning.offset_map import SHORT_KEY, key_id
from headrace.records.batch import DELETE_HORIZON_FLAG, BatchHeader
from headrace.records.raw import iterate_raw, records_of, shift_timestamp
from headrace.records.rewriting import Selection, rebuilt, without_records
from headrace.records.varint import wrap
from headrace.types import MAX_INT64, Buffer


@dataclass(frozen=True, slots=True)
class Rules:
    """The inputs of the decision about a record.

    Attributes:
        newest: The newest offset of each key, by `key_id`.
        end_offset: The offset from which on records stay, because their keys are not in `newest`.
        now_ms: The time of this round.
        delete_retention_ms: How long a tombstone stays after the first round that found it.
    """

    newest: Mapping[bytes, int]
    end_offset: int
    now_ms: int
    delete_retention_ms: int


def compact_marker(header: BatchHeader, batch: Buffer, rules: Rules) -> Buffer | None:
    """Return a marker whose transaction has no record left, or None when it is dropped, as tombstones are.

    Args:
        header: The header of the marker's batch.
        batch: The bytes of the batch. Their CRC has been checked.
        rules: The inputs of the decision.

    Returns:
        The marker, with a delete horizon from now on; None when the horizon has passed.

    Raises:
        CorruptRecordError: The record cannot be decoded.
    """
    if header.attributes & DELETE_HORIZON_FLAG:
        return None if rules.now_ms >= header.base_timestamp else batch
    data = records_of(header, batch)
    selection = Selection([(0, len(data))], kept=header.records_count)
    return _with_horizon(header, data, selection, rules)


def compact_batch(
    header: BatchHeader, batch: Buffer, rules: Rules, *, keep_empty: bool
) -> Buffer | None:
    """Return the remaining part of a batch: the batch itself if nothing changes, None if nothing remains.

    Args:
        header: The header of the batch.
        batch: The bytes of the batch. Their CRC has been checked.
        rules: The inputs of the decision.
        keep_empty: Whether the header stays when no record does.

    Raises:
        CorruptRecordError: The records cannot be decoded.
    """
    if not header.records_count:
        return batch if keep_empty else None
    if header.is_control or header.base_offset >= rules.end_offset:
        return batch  # `cleaned_transactions` decides about markers
    data = records_of(header, batch)
    selection = _select(header, data, rules)
    if not selection.kept:
        return without_records(header) if keep_empty else None
    stamps = selection.has_tombstone and not header.attributes & DELETE_HORIZON_FLAG
    if selection.kept == header.records_count and not stamps:
        return batch
    if stamps:
        return _with_horizon(header, data, selection, rules)
    kept = b"".join([data[start:end] for start, end in selection.runs])
    return rebuilt(header, kept, selection, header.base_timestamp, header.attributes)


def _select(header: BatchHeader, data: bytes, rules: Rules) -> Selection:
    selection = Selection([])
    runs, known, end_offset = selection.runs, rules.newest.get, rules.end_offset
    base_offset, newest_delta, run_start = header.base_offset, None, 0
    expired = (
        bool(header.attributes & DELETE_HORIZON_FLAG) and rules.now_ms >= header.base_timestamp
    )
    for start, end, time_delta, delta, key, has_value in iterate_raw(data, header.records_count):
        offset = base_offset + delta
        if offset < end_offset and (
            key is None
            or offset < known(key if len(key) < SHORT_KEY else key_id(key), -1)
            or (expired and not has_value)
        ):
            if run_start < start:
                runs.append((run_start, start))
            run_start = end
            continue
        selection.kept += 1
        if not has_value:
            selection.has_tombstone = True
        if newest_delta is None or time_delta > newest_delta:
            newest_delta = time_delta
    if run_start < len(data):
        runs.append((run_start, len(data)))
    selection.newest_delta = newest_delta or 0
    if header.base_timestamp + selection.newest_delta > MAX_INT64:
        selection.newest_delta = _newest_delta(header, data, selection)
    return selection


def _newest_delta(header: BatchHeader, data: bytes, selection: Selection) -> int:
    """Return the timestamp delta of the newest remaining record, where the sum of base and delta overflows int64."""
    base, runs = header.base_timestamp, iter(selection.runs)
    run_start, run_end = next(runs, (0, 0))
    newest: int | None = None
    for start, _, delta, *_ in iterate_raw(data, header.records_count):
        while start >= run_end:
            run_start, run_end = next(runs, (len(data), len(data)))
        if start >= run_start:
            wrapped = wrap(base + delta) - base
            newest = wrapped if newest is None else max(newest, wrapped)
    return newest or 0


def _with_horizon(
    header: BatchHeader, data: bytes, selection: Selection, rules: Rules
) -> bytearray:
    horizon = min(rules.now_ms + rules.delete_retention_ms, MAX_INT64)
    shift = header.base_timestamp - horizon
    kept = bytearray()
    runs = iter(selection.runs)
    run_start, run_end = next(runs)
    for start, end, *_ in iterate_raw(data, header.records_count):
        while start >= run_end:
            following = next(runs, None)
            if following is None:
                break
            run_start, run_end = following
        if run_start <= start < run_end:
            kept += shift_timestamp(data[start:end], shift)
    attributes = header.attributes | DELETE_HORIZON_FLAG
    return rebuilt(header, kept, selection, horizon, attributes)
