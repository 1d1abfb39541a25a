"""The compression of produced batches for topics whose `compression.type` is a codec.

A batch with the codec of its topic is stored unchanged, whatever its level. Any other batch is decompressed, its
records are checked, and it is compressed with the codec of the topic. That takes up to seconds, so the records are
checked in steps (`headrace.broker.waiting.steps`). A shell with threads runs decompression and compression in them,
because both release the interpreter lock. Without threads they take steps, too. Small batches are processed at once.

Batches keep the order of their requests: the next request of a connection waits until this one is done. At most
`BATCHES_MOST` batches are processed at a time, which bounds their memory. The others wait in order of arrival.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator
from functools import partial
from typing import Any, Final, TypeVar

from headrace.broker.session import Session
from headrace.broker.waiting.purgatory import Purgatory
from headrace.broker.waiting.steps import STEP_COST, Steps, Work
from headrace.core.log import LogConfig, require_timely, validate_batch
from headrace.deferred import Deferred
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
"""The greatest number of batches that are processed at a time."""
SMALL_BYTES: Final = 256 << 10
"""The size of the largest batch that is decompressed at once, in bytes: one or two milliseconds."""
_AT_ONCE: Final = STEP_COST // 10
"""The greatest cost of a compression at once, without a thread: one and a half milliseconds."""
_RECORD_COST: Final = 400
"""The cost of checking a record: one and a half microseconds."""

RunAside = Callable[[Callable[[], Any], Callable[[Any], object]], object]
"""Runs the first function in a thread. Then, in the thread of the broker, calls the second function with the result,
and `tick`."""


class Recompressions:
    """The batches that are compressed again.

    Attributes:
        run_aside: Runs work in threads; None if the shell has none.
        small_bytes: The size of the largest batch that is decompressed at once, in bytes.
        at_once: The greatest cost of a compression at once.
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
        """Begin without batches.

        Args:
            steps: Charges clients for work in threads.
            purgatory: Delivers the notices to batches that wait for their turn.
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
        """Compress a produced batch with the codec of its topic.

        Args:
            records: The batch from the producer. It must not change until the work is done.
            target: The compression of the topic.
            config: The configuration of the partition's log.
            session: The connection that is charged.
            now_ms: The time.

        Raises:
            ApiError: The batch or one of its records is invalid, or the batch is too large.
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
        """Wait until another batch may be processed."""
        if self._under_way < BATCHES_MOST:
            self._under_way += 1
        else:
            turn: Deferred[None] = Deferred()
            self._waiting.append(turn)
            yield turn

    def _leave(self) -> None:
        """Let the next batch begin in place of this one."""
        if self._waiting:
            turn = self._waiting.popleft()
            self._purgatory.deliver_later(lambda: turn.resolve(None))  # after this work
        else:
            self._under_way -= 1

    def _decompressed(
        self, header: BatchHeader, batch: Buffer, most: int, session: Session
    ) -> Work[Buffer]:
        """Decompress the records of a batch.

        Raises:
            ApiError: INVALID_RECORD or MESSAGE_TOO_LARGE.
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
        """Compress the records of a batch."""
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
        """Run work in a thread and return its result.

        Args:
            work: The work.
            session: The connection that is charged.
            cost: Returns the cost of the work for its result.

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
    """Decompress records; return None if decompression would take too long."""
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
    """Run work that yields counts. `cost` is the cost of one counted item."""
    while True:
        try:
            count = next(work)
        except StopIteration as end:
            outcome: T = end.value
            return outcome
        yield int(count * cost)


def _attempt(work: Callable[[], bytes]) -> bytes | Exception:
    """Return the result or the exception of some work. After both, the next batch begins."""
    try:
        return work()
    except Exception as error:  # noqa: BLE001 - raised again where the broker waits for the work
        return error


def _too_large(what: str) -> ApiError:
    return ApiError(
        ErrorCode.MESSAGE_TOO_LARGE,
        f"{what}: the topic's batches are compressed again; send smaller batches",
    )
