"""The comparison of a log with its model."""

from __future__ import annotations

import random
from collections.abc import Sequence

from headrace.core.log import MAX_OFFSET, BatchEntry, LogConfig, PartitionLog, Segment
from headrace.records.expiry import expiry_of_batch
from headrace.records.reader import Record
from headrace.types import FileRange
from tests.fixtures.transactions import read_committed
from tests.simulation.log.model import (
    Batch,
    Model,
    State,
    Transaction,
    ViolationError,
    end_offset_for,
    require,
)


def content_of(segment: Segment) -> list[Batch]:
    """Return the batches in the file of a segment."""
    loaded = segment.loaded
    data = segment.reopen().read(0, segment.size) if segment.size else b""
    if not loaded:
        segment.unload()
    return Batch.split(data)


def batches_of(log: PartitionLog) -> list[Batch]:
    """Return all batches in the segments of a log."""
    return [batch for segment in log.segments for batch in content_of(segment)]


def last_batches(log: PartitionLog, end: int) -> dict[int, tuple[int, BatchEntry]]:
    """Return the epoch and the last batch below an offset of each producer that a log knows."""
    found: dict[int, tuple[int, BatchEntry]] = {}
    for producer_id, entry in log.producers.items():
        batches = [batch for batch in entry.batches if batch.last_offset < end]
        if batches:
            found[producer_id] = entry.epoch, batches[-1]
    return found


class Checker:
    """Compares a log with its model; each method raises `ViolationError` for a difference."""

    def __init__(self, model: Model, config: LogConfig, now_ms: int) -> None:
        self._model = model
        self._config = config
        self._now_ms = now_ms

    def check(self, log: PartitionLog, chance: random.Random) -> None:
        """Compare everything that the model knows."""
        self.check_batches(log)
        self.check_epochs(log)
        self.check_producers(log)
        self.check_transactions(log)
        self.check_lookups(log, chance)
        self.check_readers(log)
        if self._config.expires:
            self.check_expiries(log)

    # Batches

    def check_batches(self, log: PartitionLog) -> None:
        """Compare batches and offsets."""
        model = self._model
        found = batches_of(log)
        expected = model.batches
        first = log.segments.start_offset
        below = [batch for batch in expected if batch.base < first]
        require(
            all(batch.end <= model.start for batch in below),
            f"the segments begin at {first}, and the log at {model.start}",
        )
        kept = expected[len(below) :]
        if found != kept:
            raise ViolationError(f"the log has the batches {found}, expected {kept}")
        require(
            (log.log_start_offset, log.log_end_offset) == (model.start, model.end),
            f"the log is {log.log_start_offset}..{log.log_end_offset}, expected {model.start}..{model.end}",
        )
        require(
            log.high_watermark <= log.log_end_offset and log.synced_offset <= log.log_end_offset,
            f"an offset is beyond the log end: {log!r}",
        )

    def require_reduction(self, found: Sequence[Batch], first: int) -> None:
        """Check that the batches from an offset on are what compaction or expiry may have left of the history."""
        model = self._model
        known = {batch.base: batch for batch in model.history}
        for batch in found:
            original = known.get(batch.base)
            if original is None:
                raise ViolationError(f"the batch {batch} was never appended, or was cut off")
            if batch.raw == original.raw:
                continue
            header, before = batch.header, original.header
            same = (
                "last_offset_delta",
                "partition_leader_epoch",
                "producer_id",
                "producer_epoch",
                "base_sequence",
            )
            require(
                batch.base < model.rewritten
                and all(getattr(header, name) == getattr(before, name) for name in same)
                and set(batch.records) <= set(original.records),
                f"the batch {batch} differs from the one that was appended",
            )
        whole = [batch for batch in found if batch.base >= model.rewritten]
        limit = max(model.rewritten, first)
        wanted = [batch for batch in model.history if batch.base >= limit]
        require(whole == wanted, f"the log has the batches {whole}, expected {wanted}")
        require(
            all(batch.end <= model.start for batch in model.history if batch.base < first),
            f"the segments begin at {first}, and the log at {model.start}",
        )

    # Epochs

    def check_epochs(self, log: PartitionLog) -> None:
        """Compare the answers of OffsetForLeaderEpoch, up to offsets that no record has."""
        model = self._model
        expected = model.epochs
        if model.empty_epoch >= 0:
            expected = [*expected, (model.empty_epoch, model.end)]
        batches = [batch for batch in model.batches if batch.end > model.start]

        def next_record(offset: int) -> int:
            offset = max(offset, model.start)
            return next(
                (max(each.base, offset) for each in batches if each.end > offset), model.end
            )

        latest = expected[-1][0] if expected else 0
        require(
            log.leader_epoch == (expected[-1][0] if expected else -1) or not batches,
            f"the newest epoch is {log.leader_epoch}, expected {expected}",
        )
        if not batches:
            return
        # Of epochs before the first batch only their end matters, and a start may have forgotten them.
        oldest = batches[0].header.partition_leader_epoch if model.start else 0
        for epoch in range(latest + 2):
            found, end = log.end_offset_for_epoch(epoch)
            wanted, wanted_end = end_offset_for(expected, epoch, model.end)
            require(
                (found == wanted or epoch < oldest)
                and (end == wanted_end or next_record(end) == next_record(wanted_end)),
                f"epoch {epoch} ends at {(found, end)}, expected {(wanted, wanted_end)}; "
                f"epochs {log.epochs.entries}, expected {expected}",
            )

    # Producers

    def check_producers(self, log: PartitionLog) -> None:
        """Compare the producers. The log may have forgotten what only removed batches said."""
        model = self._model
        first = log.segments.start_offset
        present = State.after(batch for batch in model.batches if batch.base >= first)
        exact = not first and not model.rewritten
        for producer_id in (each for each, _ in log.producers.items()):
            require(producer_id in model.state.producers, f"producer {producer_id} is unknown")
        for producer_id, wanted in model.state.producers.items():
            entry = log.producers.get(producer_id)
            least = present.producers.get(producer_id)
            if entry is None:
                require(least is None, f"producer {producer_id} is missing, expected {least}")
                continue
            found = [tuple(batch[:4]) for batch in entry.batches]
            what = f"producer {producer_id}: {entry.epoch}, {found}, expected {wanted}"
            if exact:
                require(
                    (entry.epoch, entry.coordinator_epoch, found)
                    == (wanted.epoch, wanted.coordinator_epoch, wanted.batches),
                    what,
                )
                continue
            require(entry.epoch <= wanted.epoch, what)
            require(least is None or entry.epoch >= least.epoch, what)
            if least is not None and least.epoch == entry.epoch:
                must = [batch for batch in least.batches if batch in wanted.batches]
                require(set(must) <= set(found), f"{what}, at least {must}")
                require(
                    not must or wanted.batches[-1] not in must or found[-1] == wanted.batches[-1],
                    what,
                )

    # Transactions

    def check_transactions(self, log: PartitionLog) -> None:
        """Compare open and aborted transactions and the last stable offset."""
        model, transactions = self._model, log.producers.transactions
        first = log.segments.start_offset
        exact = not first and not model.rewritten
        wanted = {each: one.first for each, one in model.state.open.items()}
        if exact:
            require(
                transactions.open == wanted,
                f"the open transactions are {transactions.open}, expected {wanted}",
            )
        for producer_id, offset in transactions.open.items():
            require(
                wanted.get(producer_id, MAX_OFFSET) <= offset,
                f"producer {producer_id} has an open transaction at {offset}, expected {wanted}",
            )
        for producer_id, transaction in model.state.open.items():
            data = next(self._kept_data(transaction, first), None)
            require(
                data is None or transactions.open.get(producer_id, MAX_OFFSET) <= data,
                f"the open transaction of producer {producer_id} is missing: {transactions.open}",
            )
        self._check_last_stable_offset(log)
        self._check_aborted(log)

    def _kept_data(self, transaction: Transaction, first: int):
        return (batch.base for batch in self._model.data_of(transaction) if batch.base >= first)

    def _check_last_stable_offset(self, log: PartitionLog) -> None:
        model = self._model
        high_watermark = log.high_watermark
        lowest = highest = high_watermark
        for one in model.state.transactions:
            if one.marker is not None and one.marker.base < high_watermark:
                continue
            lowest = min(lowest, max(one.first, model.start))
            kept = next(self._kept_data(one, log.segments.start_offset), None)
            if kept is not None:
                highest = min(highest, max(kept, model.start))
        require(
            lowest <= log.last_stable_offset <= highest,
            f"the last stable offset is {log.last_stable_offset}, expected {lowest}..{highest}",
        )

    def _check_aborted(self, log: PartitionLog) -> None:
        model = self._model
        aborted = log.producers.transactions.aborted
        found = {(one.producer_id, one.last_offset): one for one in aborted}
        require(len(found) == len(aborted), "an aborted transaction is listed twice")
        expected = {
            (one.producer_id, one.marker.base): one
            for one in model.state.transactions
            if one.is_aborted and one.marker is not None
        }
        unknown = found.keys() - expected.keys()
        require(not unknown, f"the transactions {unknown} were not aborted")
        for key, one in expected.items():
            data = next(self._kept_data(one, model.start), None)
            if data is not None and key[1] >= model.start:
                require(key in found, f"the aborted transaction {key} is missing")
                require(
                    found[key].first_offset <= data,
                    f"the aborted transaction {key} begins at {found[key].first_offset}, expected {data}",
                )

    # Lookups

    def check_lookups(self, log: PartitionLog, chance: random.Random) -> None:
        """Look up offsets and times."""
        model = self._model
        for segment in log.segments:
            position = 0
            previous = segment.base_offset
            for batch in content_of(segment):
                for offset in {previous, batch.base, batch.end - 1}:
                    require(
                        segment.locate(offset) == position,
                        f"offset {offset} is found at byte {segment.locate(offset)} of {segment}, "
                        f"expected {position}",
                    )
                position += len(batch.raw)
                previous = batch.end
        records = [
            record
            for batch in model.batches
            for record in batch.records
            if record.offset >= model.start
        ]
        times = sorted({record.timestamp for record in records})
        for timestamp in chance.sample(times, min(len(times), 4)):
            for wanted in (timestamp, timestamp + 1):
                self._check_time(log, wanted, records)
        self._check_range(log, chance)

    def _check_time(self, log: PartitionLog, timestamp: int, records: Sequence[Record]) -> None:
        found = log.offset_for_timestamp(timestamp)
        first = next((each for each in records if each.timestamp >= timestamp), None)
        expected = None if first is None else (first.offset, first.timestamp)
        require(
            (found and found[:2]) == expected,
            f"time {timestamp} is found at {found}, expected {expected}",
        )

    def _check_range(self, log: PartitionLog, chance: random.Random) -> None:
        model = self._model
        with_records = [
            batch
            for batch in model.batches
            if batch.header.records_count and batch.end > model.start
        ]
        if not with_records:
            return
        wanted = chance.choice(with_records)
        offset = max(wanted.base, model.start)
        found = log.read(offset, max_bytes=1, up_to=log.log_end_offset, minimum_one=True)
        data = found.read() if isinstance(found, FileRange) else b""
        require(data == wanted.raw, f"a read at {offset} begins with another batch than {wanted}")

    # Readers

    def check_readers(self, log: PartitionLog) -> None:
        """Read as a consumer of committed records does."""
        model = self._model
        expected = {
            record.offset: record for record in model.committed_records(log.last_stable_offset)
        }
        found = read_committed(log)
        require(
            all(
                offset in expected
                and (expected[offset].key, expected[offset].value) == (key, value)
                for offset, key, value in found
            ),
            "a reader of committed records finds records that are not committed",
        )
        offsets = {offset for offset, _, _ in found}
        missing = [record for offset, record in expected.items() if offset not in offsets]
        if not model.rewritten:
            require(not missing, f"a reader of committed records misses {missing[:3]}")
        elif self._config.compacts and log.last_stable_offset < model.rewritten:
            return  # the high watermark is older than the last round: the newest record of a key may lie above it
        elif self._config.compacts:
            latest = {record.key: record for record in expected.values()}
            lost = [
                record
                for record in missing
                if record.offset >= model.incomplete
                and latest[record.key] is record
                and (record.value is not None or record.offset >= model.rewritten)
            ]
            require(not lost, f"compaction has lost {lost[:3]}")
        else:
            lost = [record for record in missing if not self._has_expired(record)]
            require(not lost, f"expiry has lost {lost[:3]}")

    def _has_expired(self, record: Record) -> bool:
        for name, value in record.headers:
            if name == "headrace.ttl-ms" and value is not None:
                return record.timestamp + int(value) <= self._now_ms
        return False

    # Expiry

    def check_expiries(self, log: PartitionLog) -> None:
        """Check that the expiry index skips no record that has not expired, and misses none that has."""
        for segment in log.segments:
            index = segment.expiries.index(segment.size)
            batches = content_of(segment)
            expiries = [
                expiry_of_batch(batch.header, batch.raw, briefly=False) for batch in batches
            ]
            for now_ms in {moment for one in expiries for moment in one if 0 < moment < MAX_OFFSET}:
                end = index.end_of_expired(0, now_ms)
                start = index.first_expired(0, segment.size, now_ms)
                position = 0
                for batch, expiry in zip(batches, expiries, strict=True):
                    require(
                        position >= end or expiry.latest <= now_ms,
                        f"the expiry index skips the batch {batch} at {now_ms}",
                    )
                    require(
                        expiry.earliest > now_ms
                        or (start is not None and start < position + len(batch.raw)),
                        f"the expiry index misses the expired batch {batch} at {now_ms}",
                    )
                    position += len(batch.raw)
