"""Produced batches that are compressed again, for topics whose `compression.type` is not 'producer'.

A batch that has the topic's codec already is stored as it comes, whatever its level. Any other is decompressed, each of
its records is checked, and it is compressed with the topic's codec. That takes up to seconds. Records are checked in
steps (`headrace.broker.waiting.steps`). A shell with threads lends them for decompression and compression, which let
go of the interpreter; without threads they take steps too. Small batches are done at once.

The order of batches is that of their requests: a connection's next request waits until this one is done. A few batches
are worked on at a time, which bounds the memory that they take; the others wait in the order in which they came.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator
from functools import partial
from typing import Any, Final, TypeVar

from headrace.broker.session import Session
from headrace.broker.waiting.purgatory import Purgatory
from headrace.broker.waiting.steps import STEP_COST, Steps, Work
from headrace.core.deferred import Deferred
from headrace.core.log import LogConfig, require_timely, validate_batch
from headrace.errors import ApiError, CorruptRecordError, ErrorCode, InvalidRecordError
from headrace.records.batch import (
    COMPRESSION_MASK,
    CRC_START,
    HEADER_SIZE,
    BatchHeader,
    TimestampType,
)
from headrace.records.compression import (
    Compression,
    OutputTooLargeError,
    compress,
    compress_in_pieces,
    decompress,
    decompress_in_pieces,
)
from headrace.records.recompression import (
    Target,
    check_records,
    most_decompressed,
    with_codec,
)
from headrace.types import Buffer

T = TypeVar("T")

BATCHES_MOST: Final = 2
"""Most batches that are worked on at a time."""
SMALL_BYTES: Final = 256 << 10
"""Up to so many bytes records are decompressed at once: a millisecond or two."""
_AT_ONCE: Final = STEP_COST // 10
"""The greatest cost of a compression at once, without a thread: a millisecond and a half."""
_RECORD_COST: Final = 400
"""The cost of checking a record: a microsecond and a half."""

RunAside = Callable[[Callable[[], Any], Callable[[Any], object]], object]
"""Runs the first function in a thread; then, where the broker may be called, the second with its result, and a tick."""


class Recompressions:
    """The batches that are compressed again.

    Attributes:
        run_aside: Lends threads; None if the shell has none.
        small_bytes: Up to how many bytes records are decompressed at once.
        at_once: What is compressed at once, by its cost.
    """

    __slots__ = (
        "_purgatory",
        "_steps",
        "_under_way",
        "_waiting",
        "at_once",
        "run_aside",
        "small_bytes",
    )

    def __init__(self, steps: Steps, purgatory: Purgatory) -> None:
        """Begin with none.

        Args:
            steps: Charges for work in threads.
            purgatory: Tells those that wait for room.
        """
        self._steps = steps
        self._purgatory = purgatory
        self._under_way = 0
        self._waiting: deque[Deferred[None]] = deque()
        self.run_aside: RunAside | None = None
        self.small_bytes = SMALL_BYTES
        self.at_once = _AT_ONCE

    def recompress(
        self, records: Buffer, target: Target, config: LogConfig, session: Session, now_ms: int
    ) -> Work[Buffer]:
        """Return a produced batch with the codec of its topic.

        Args:
            records: The batch as the producer sent it; it stays where it is until this is done.
            target: How the topic's batches are compressed.
            config: The configuration of the partition's log.
            session: The connection that pays for it.
            now_ms: The time.

        Raises:
            ApiError: The batch is refused: it is not sound, one of its records is not, or it is too large.
        """
        if len(records) >= HEADER_SIZE and _codec_of(records) == target.codec:
            return records
        validate_batch(records, config.max_message_bytes, config.message_timestamp_type)
        header = BatchHeader.parse(records)
        yield from self._enter()
        try:
            most = most_decompressed(config.max_message_bytes)
            data = yield from self._decompressed(header, records, most, session)
            checking = check_records(header, data)
            times = yield from _counting(checking, _RECORD_COST)
            if config.message_timestamp_type is TimestampType.CREATE_TIME:
                stated = header._replace(base_timestamp=times.oldest, max_timestamp=times.newest)
                require_timely(stated, config, now_ms)
            body = yield from self._compressed(target, data, session)
            return with_codec(header, data, body, target.codec, times.newest)
        finally:
            self._leave()

    def _enter(self) -> Work[None]:
        """Wait until there is room for one more."""
        if self._under_way < BATCHES_MOST:
            self._under_way += 1
        else:
            turn: Deferred[None] = Deferred()
            self._waiting.append(turn)
            yield turn

    def _leave(self) -> None:
        """Let the next batch have the place of this one."""
        if self._waiting:
            turn = self._waiting.popleft()
            self._purgatory.deliver_later(lambda: turn.resolve(None))  # not within this work
        else:
            self._under_way -= 1

    def _decompressed(
        self, header: BatchHeader, batch: Buffer, most: int, session: Session
    ) -> Work[Buffer]:
        """Return the records of a batch, decompressed.

        Raises:
            ApiError: INVALID_RECORD, or MESSAGE_TOO_LARGE.
        """
        source, codec = memoryview(batch)[HEADER_SIZE:], Compression(header.compression)
        if codec is Compression.NONE:
            if len(source) > most:
                raise _too_large(f"{len(source)} bytes of records")
            return source
        try:
            small = _decompressed_if_small(codec, source, most, self.small_bytes)
            if small is not None:
                yield len(small)
                return small
            if self.run_aside is None:
                return (yield from decompress_in_pieces(codec, source, most))
            work = partial(decompress, codec, source, most)
            return (yield from self._aside(work, session, len))
        except OutputTooLargeError as error:
            raise _too_large(str(error)) from error
        except CorruptRecordError as error:
            raise InvalidRecordError(str(error)) from error

    def _compressed(self, target: Target, data: Buffer, session: Session) -> Work[Buffer]:
        """Return the records of a batch, compressed."""
        codec, level = target.codec, target.level
        if codec is Compression.NONE:
            return data
        cost = target.cost(len(data))
        if self.run_aside is None or cost <= self.at_once:
            pieces = compress_in_pieces(codec, data, level)
            return (yield from _counting(pieces, cost / max(1, len(data))))
        work = partial(compress, codec, data, level)
        return (yield from self._aside(work, session, lambda _: cost))

    def _aside(
        self, work: Callable[[], bytes], session: Session, cost: Callable[[bytes], int]
    ) -> Work[bytes]:
        """Return what some work in a thread returns.

        Args:
            work: The work.
            session: The connection that pays for it.
            cost: What it costs, by its result.

        Raises:
            Exception: The work has raised it.
        """
        assert self.run_aside is not None, "the caller has looked"
        done: Deferred[bytes | Exception] = Deferred()
        self.run_aside(
            partial(_attempt, work),
            lambda outcome: self._purgatory.deliver_later(lambda: done.resolve(outcome)),
        )
        outcome: bytes | Exception = yield done
        if isinstance(outcome, Exception):
            raise outcome
        self._steps.charge(session, cost(outcome))
        return outcome


def _codec_of(batch: Buffer) -> int:
    return batch[CRC_START + 1] & COMPRESSION_MASK


def _decompressed_if_small(
    codec: Compression, source: Buffer, most: int, small: int
) -> bytes | None:
    """Return decompressed records; None if they are so many that decompression takes its time."""
    limit = min(most, small)
    if len(source) > limit:
        return None
    try:
        return decompress(codec, source, limit)
    except OutputTooLargeError:
        if limit < most:
            return None
        raise


def _counting(work: Generator[int, None, T], cost: float) -> Work[T]:
    """Do some work whose pieces are counts; `cost` is what one costs."""
    while True:
        try:
            count = next(work)
        except StopIteration as end:
            outcome: T = end.value
            return outcome
        yield int(count * cost)


def _attempt(work: Callable[[], bytes]) -> bytes | Exception:
    """Return the result of some work, or what it has raised: after both the next batch gets its place."""
    try:
        return work()
    except Exception as error:  # noqa: BLE001 - raised again where the broker waits for the work
        return error


def _too_large(what: str) -> ApiError:
    return ApiError(
        ErrorCode.MESSAGE_TOO_LARGE,
        f"{what}: the topic's batches are compressed again; send smaller batches",
    )
