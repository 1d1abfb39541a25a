"""The batches that a run appends, as a leader and as a follower of a leader with a compacted log."""

from __future__ import annotations

import random
from collections.abc import Sequence

from headrace.core.log import Marker, build_marker
from headrace.records.batch import HEADER, BatchHeader
from headrace.records.builder import BatchBuilder
from headrace.records.directives import directives
from headrace.records.raw import records_of
from headrace.records.rewriting import sealed, with_records, without_records
from tests.simulation.log.model import Batch, Producer, State, Transaction

KEYS = (b"a", b"b", b"c", b"d" * 20)
PLAIN = (1, 2, 3)
"""The ids of idempotent producers."""
TRANSACTIONAL = (11, 12, 13)
"""The ids of transactional producers."""
GAPS = (0, 0, 0, 1, 2, 7, 300)
"""The number of offsets that a leader's compaction has removed before a batch."""


class Writer:
    """Builds batches whose values are all different."""

    def __init__(self, *, expires: bool, compacts: bool) -> None:
        self.now_ms = 0
        self._expires = expires
        self._compacts = compacts
        self._count = 0

    def data(
        self,
        chance: random.Random,
        producer_id: int = -1,
        state: State | None = None,
        *,
        skip: int = 0,
        transactional: bool = False,
    ) -> bytes:
        """Build a batch of the next records of a producer, whose sequence skips some batches."""
        builder = BatchBuilder(transactional=transactional)
        for _ in range(chance.randint(1, 3)):
            self._count += 1
            value: bytes | None = b"%d" % self._count + b"." * chance.choice([0, 0, 30, 90])
            if self._compacts and chance.random() < 0.1:
                value = None
            ttl_ms = chance.choice([None, 10, 300]) if self._expires else None
            headers = directives((), ttl_ms=ttl_ms) if ttl_ms is not None else ()
            timestamp = self.now_ms - chance.choice([0, 0, 5, 40])
            assert builder.append(chance.choice(KEYS), value, headers, timestamp)
        if producer_id < 0:
            return builder.build()
        producer = (state.producers if state else {}).get(producer_id, Producer(0))
        sequence = producer.batches[-1][1] + 1 if producer.batches else 0
        return builder.build(producer_id, max(producer.epoch, 0), sequence + skip)

    def marker(self, producer_id: int, state: State, *, committed: bool, bump: bool) -> Marker:
        """Return the marker that ends the transaction of a producer."""
        epoch = max(state.producers.get(producer_id, Producer(0)).epoch, 0)
        return Marker(producer_id, epoch + bump, 3, committed)

    def replicated(
        self, chance: random.Random, state: State, end: int, epoch: int
    ) -> Sequence[bytes]:
        """Return some batches as a fetch from a leader brings them: with offsets, epochs and gaps."""
        replayed = State.after([])
        replayed.producers = {
            each: Producer(one.epoch, one.coordinator_epoch, list(one.batches))
            for each, one in state.producers.items()
        }
        replayed.open = {each: Transaction(each, one.first) for each, one in state.open.items()}
        found: list[bytes] = []
        for _ in range(chance.choice([1, 1, 2, 4])):
            batch = self._of_leader(chance, replayed, end + chance.choice(GAPS), epoch)
            found.append(batch)
            replayed.add(Batch(batch))
            end = Batch(batch).end
        return found

    def _of_leader(self, chance: random.Random, state: State, offset: int, epoch: int) -> bytes:
        kind = chance.choices(["plain", "idempotent", "transactional", "marker"], [4, 3, 3, 2])[0]
        if kind == "marker":
            producer_id = chance.choice(list(state.open) or TRANSACTIONAL)
            marker = self.marker(
                producer_id,
                state,
                committed=chance.random() < 0.5,
                bump=chance.random() < 0.2,
            )
            return at(build_marker(marker, self.now_ms), offset, epoch)
        producer_id = {"plain": -1, "idempotent": chance.choice(PLAIN)}.get(
            kind, chance.choice(TRANSACTIONAL)
        )
        batch = self.data(
            chance,
            producer_id,
            state,
            skip=chance.choice([0, 0, 0, 5]),
            transactional=kind == "transactional",
        )
        return at(reduced(chance, batch), offset, epoch)


def reduced(chance: random.Random, batch: bytes) -> bytes:
    """Return what a leader's compaction may have left of a batch."""
    header = BatchHeader.parse(batch)
    fate = chance.random()
    if fate < 0.1:
        return bytes(without_records(header))
    if fate < 0.25 and header.records_count > 1:
        stays = [chance.random() < 0.5 for _ in range(header.records_count)]
        if any(stays):
            return bytes(with_records(header, records_of(header, batch), stays))
    return batch


def at(batch: bytes, offset: int, epoch: int) -> bytes:
    """Return a batch with its base offset and leader epoch."""
    header = BatchHeader.parse(batch)
    return HEADER.pack(*header._replace(base_offset=offset, partition_leader_epoch=epoch)) + bytes(
        batch[HEADER.size :]
    )


def spoiled(chance: random.Random, batch: bytes, end: int, epoch: int) -> bytes | None:
    """Return a batch that a follower must refuse, None if there is none of the drawn kind."""
    header = BatchHeader.parse(batch)
    kind = chance.choice(["crc", "magic", "offset", "epoch", "short"])
    if kind == "crc":
        return batch[:-1] + bytes([batch[-1] ^ 1])
    if kind == "magic":
        return batch[:16] + b"\x01" + batch[17:]
    if kind == "short":
        return batch[:-3]
    if kind == "offset":
        offset = (
            end - header.last_offset_delta - 1
        )  # a batch that ends higher may begin an empty log
        return at(batch, offset, header.partition_leader_epoch) if offset >= 0 else None
    if epoch <= 0:
        return None
    return bytes(sealed(header._replace(partition_leader_epoch=epoch - 1), batch[HEADER.size :]))
