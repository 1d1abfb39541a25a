"""The blocking form of `headrace.kinesis.Producer`, for scripts: the same methods, which wait.

with Producer(AwsSettings(region="eu-central-1")) as producer:
    producer.send("orders", b"2 apples", partition_key="alice")
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from types import TracebackType
from typing import Any, Final, Self, TypeVar

from headrace.clients.drivers.unclosed import at_exit, report_exit, warn_unclosed
from headrace.errors import ClosedError, HeadraceError, TransportError
from headrace.forking import FORKED, disown_in_children
from headrace.kinesis.client.settings import AwsSettings
from headrace.kinesis.producing import delivery as aio_delivery
from headrace.kinesis.producing import producer as aio
from headrace.kinesis.producing.records import SentRecord
from headrace.kinesis.producing.settings import ProducerSettings

__all__ = ["Delivery", "Producer"]

_JOIN_S: Final = 5.0

T = TypeVar("T")


class _LoopThread:
    """An event loop in a thread of its own, where calls are carried out for programs that wait."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self.closed = False
        self._forked = False

    def disown(self) -> None:
        """Become closed, in a forked child: the loop and its thread are the parent's."""
        self.closed = self._forked = True
        self._lock = threading.Lock()
        self._thread = None

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Wait until something is done; if the waiting is interrupted, it is done no further.

        Raises:
            ClosedError: The thread has ended.
        """
        with self._lock:
            if self.closed:
                work.close()
                raise ClosedError(
                    f"this producer {FORKED}" if self._forked else "the producer is closed"
                )
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(
                    target=self._loop.run_forever, name="headrace-kinesis", daemon=True
                )
                self._thread.start()
            future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def close(self) -> None:
        """End the thread, after all calls have ended."""
        with self._lock:
            self.closed = True
            loop, thread = self._loop, self._thread
            self._loop = self._thread = None
        if loop is not None and thread is not None:
            loop.call_soon_threadsafe(loop.stop)
            thread.join(_JOIN_S)
            if not thread.is_alive():
                loop.close()


class Delivery:
    """The fate of a record, to be waited for."""

    __slots__ = ("_fate", "_thread")

    def __init__(self, fate: aio_delivery.RecordDelivery, thread: _LoopThread) -> None:
        self._fate = fate
        self._thread = thread

    def done(self) -> bool:
        """Whether the record's fate is known."""
        return self._fate.done()

    def result(self, timeout_s: float | None = None) -> SentRecord:
        """Wait for the record's fate, and return where it went.

        Args:
            timeout_s: Seconds to wait; None is until the producer writes it or gives it up.

        Raises:
            HeadraceError: Why it went nowhere.
            TransportError: Its fate is not known in time.
        """
        self._wait(timeout_s)
        return self._fate.result()

    def exception(self, timeout_s: float | None = None) -> BaseException | None:
        """Wait for the record's fate, and return why it went nowhere, or None.

        Args:
            timeout_s: As for `result`.

        Raises:
            TransportError: Its fate is not known in time.
        """
        self._wait(timeout_s)
        return self._fate.exception()

    def _wait(self, timeout_s: float | None) -> None:
        self._fate.noticed = True
        if self._fate.done():
            return
        try:
            self._thread.run(asyncio.wait_for(self._fate.settled(), timeout_s))
        except TimeoutError:
            reason = f"; last error: {self._fate.reason}" if self._fate.reason else ""
            raise TransportError(
                f"what became of the record is not known within {timeout_s} s; it is tried on until "
                f"delivery_timeout_ms is over{reason}"
            ) from None


class Producer:
    """Writes records to streams; a context manager that flushes and closes.

    As `headrace.kinesis.Producer`, line for line, on an event loop in a thread of its own: records of one partition key
    are written in the order of `send`, at least once. One producer may be used by many threads.
    """

    def __init__(
        self,
        aws: AwsSettings | None = None,
        *,
        settings: ProducerSettings | None = None,
        **options: Any,
    ) -> None:
        """Prepare a producer; nothing is connected before the first record.

        Args:
            aws: Where AWS is and who asks; what is not given comes from environment, files and roles.
            settings: How to batch, repeat and give up.
            options: The same by name, as `linger_ms=50` or `aggregate_bytes=51_200`, in place of `settings`.

        Raises:
            ConfigError: A setting cannot work.
        """
        self._producer = aio.Producer(aws, settings=settings, **options)
        self.settings = self._producer.settings
        self._thread = _LoopThread()
        at_exit(self, Producer._end_of_program)
        disown_in_children(self)

    def disown(self) -> None:
        """Become closed, in a forked child: connections and event loop are the parent's."""
        self._thread.disown()

    def __del__(self) -> None:
        thread = getattr(self, "_thread", None)  # none if the arguments were wrong
        if thread is not None and not thread.closed:
            warn_unclosed(self, "close()", self.close)

    def _end_of_program(self, timeout_s: float) -> None:  # noqa: ARG002 - who calls waits no longer than that
        """Flush and close at the end of the program, and log what is lost."""
        if self._thread.closed:
            return
        unsent, reason = self._producer.outstanding, None
        try:
            self.close()
        except HeadraceError as error:
            reason = error
        report_exit(unsent, self._producer.outstanding if reason is None else unsent, reason)

    @property
    def outstanding(self) -> int:
        """Records whose fate is not known."""
        return self._producer.outstanding

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close(flush=kind is None)

    def send(
        self,
        stream: str,
        data: bytes,
        *,
        partition_key: str,
        explicit_hash_key: str | int | None = None,
    ) -> Delivery:
        """Take a record over; waits only while the buffer is full.

        Args:
            stream: Name or ARN.
            data: The content.
            partition_key: Chooses the shard; records of one key keep their order.
            explicit_hash_key: Chooses the shard in place of the key.

        Returns:
            The record's fate, to be waited for: a `SentRecord`, or why it went nowhere.

        Raises:
            ClosedError: The producer is closed.
            ConfigError: Credentials or region are missing.
            KinesisError: Kinesis takes no such record: it is too large, or its key is.
            TypeError: The data is text, or the key is none.
        """
        sending = self._producer.send(
            stream, data, partition_key=partition_key, explicit_hash_key=explicit_hash_key
        )
        return Delivery(self._thread.run(sending), self._thread)

    def flush(self) -> None:
        """Wait until the fate of every record that was given so far is known.

        Raises:
            HeadraceError: The first failure since the last flush that the program has not asked for.
        """
        self._thread.run(self._producer.flush())

    def close(self, *, flush: bool = True) -> None:
        """Deliver what is left, and disconnect.

        Args:
            flush: False gives up what is left.

        Raises:
            HeadraceError: As `flush`.
        """
        if self._thread.closed:
            return
        try:
            self._thread.run(self._producer.close(flush=flush))
        finally:
            self._thread.close()
