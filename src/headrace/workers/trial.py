"""`with app.test(broker) as t`: runs an app in a thread of a test, which writes input and reads results."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import CancelledError
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

from headrace.clients.consumer.blocking import Consumer
from headrace.clients.consumer.records import ConsumerRecord
from headrace.clients.drivers import Target
from headrace.clients.producer.delivery import RecordMetadata
from headrace.dead_letters import letter_headers
from headrace.errors import HeadraceError
from headrace.workers.service import Service
from headrace.workers.topic_reader import read_topic

if TYPE_CHECKING:
    from headrace.embedded.broker import Broker

T = TypeVar("T")

LOOK_EVERY_S: Final = 0.01
"""The interval of the checks in `wait_idle`, in seconds."""
START_TIMEOUT_S: Final = 30.0
"""The time in which the app must start, in seconds."""
STOP_TIMEOUT_S: Final = 30.0
"""The time in which the app must end, in seconds."""


class TrialMessage:
    """A record that a test examines.

    Attributes:
        record: The record. The topic's serde has decoded the value; without a serde it is bytes.
    """

    __slots__ = ("record",)

    def __init__(self, record: ConsumerRecord) -> None:
        self.record = record

    def __repr__(self) -> str:
        topic, partition, offset, *_ = self.record
        return f"TrialMessage({topic}[{partition}]@{offset} key={self.key!r} value={self.value!r})"

    @property
    def key(self) -> Any:
        """The key of the record."""
        return self.record.key

    @property
    def value(self) -> Any:
        """The value of the record."""
        return self.record.value

    def json(self) -> Any:
        """Return the value, decoded as JSON if it is bytes or text."""
        value = self.record.value
        return json.loads(value) if isinstance(value, bytes | str) else value

    def header(self, name: str) -> str | None:
        """Return a header as text, numbers as digits; None if the record has no such header."""
        if all(key != name for key, _ in self.record.headers):
            return None
        return letter_headers.header_text(name, letter_headers.header(self.record, name))


class Trial:
    """A run of an app in a test. At its end, the context manager stops the app and raises the error of the app."""

    def __init__(
        self,
        new_service: Callable[[Target], Service],
        broker: Target | None,
        properties: Mapping[str, Any],
    ) -> None:
        """Prepare a run.

        Args:
            new_service: Returns an object that runs the app on a broker.
            broker: The broker; None creates one in memory.
            properties: The properties of the app's clients.
        """
        self._new_service = new_service
        self._properties = properties
        self._given = broker
        self._own: Broker | None = None
        self._target: Target | None = broker
        self._service: Service | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._ready = threading.Event()
        self._error: BaseException | None = None

    def __enter__(self) -> Self:
        if self._target is None:
            from headrace.embedded.broker import Broker  # noqa: PLC0415 - only where none was given

            self._own = Broker(configs={"group.initial.rebalance.delay.ms": "0"})
            self._target = self._own
        self._service = self._new_service(self._target)
        self._thread = threading.Thread(target=self._run, name="headrace-app-test", daemon=True)
        self._thread.start()
        self._ready.wait(START_TIMEOUT_S)
        try:
            self._raise_failure()
        except BaseException:
            if self._own is not None:
                self._own.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._service is not None
        assert self._thread is not None
        self._service.stop()
        self._thread.join()
        if self._own is not None:
            self._own.close()
        if kind is None:
            self._raise_failure()

    # For tests

    def produce(
        self, topic: str, value: Any, *, key: Any = None, headers: letter_headers.Headers = ()
    ) -> RecordMetadata:
        """Write a record. Without a serde of the topic, bytes and text are written as they are, others as JSON."""
        outlet = self._running().outlet
        assert outlet is not None, "the app runs"
        return self._await(outlet.publish(topic, value, key=key, headers=headers))

    def wait_idle(self, timeout_s: float = 10.0) -> None:
        """Wait until every record of the workers' topics is finished, also records that wait for a further attempt.

        Raises:
            TimeoutError: Some records are not finished in time.
            HeadraceError: The app has failed with this error.
        """
        deadline = time.monotonic() + timeout_s
        while not self._await((service := self._running()).idle()):
            if time.monotonic() > deadline:
                counted = {name: each.as_dict() for name, each in service.counters.items()}
                raise TimeoutError(f"the app is not idle after {timeout_s} s: {counted}")
            time.sleep(LOOK_EVERY_S)

    def messages(self, topic: str) -> list[TrialMessage]:
        """Return all records of a topic by partition and offset. Empty if the topic does not exist."""
        assert self._target is not None, "the app runs"
        reading = {
            **self._properties,
            "enable_auto_commit": False,
            "isolation_level": "read_committed",
        }
        with Consumer(self._target, **reading) as consumer:
            records = sorted(read_topic(consumer, topic), key=lambda record: record[:3])
        return [TrialMessage(record) for record in records]

    # Internal

    def _running(self) -> Service:
        self._raise_failure()
        assert self._service is not None, "use it in a with statement"
        if self._service.outlet is None:
            raise self._end()
        return self._service

    def _end(self) -> HeadraceError:
        """Wait for the end of the app. Raise its error, or return the error for an app that was stopped."""
        assert self._thread is not None, "the app ran"
        self._thread.join(STOP_TIMEOUT_S)
        self._raise_failure()
        return HeadraceError("the app was stopped")

    def _await(self, coroutine: Coroutine[Any, Any, T]) -> T:
        assert self._loop is not None, "the app runs"
        future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        while True:
            try:
                return future.result(1.0)
            except TimeoutError:
                if future.done():
                    raise
                if self._thread is None or not self._thread.is_alive():
                    raise self._end() from None
            except CancelledError:
                raise self._end() from None

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as error:  # noqa: BLE001 - raised in the test's thread
            self._error = error
        finally:
            self._ready.set()

    async def _serve(self) -> None:
        assert self._service is not None
        self._loop = asyncio.get_running_loop()
        # A group notices new topics late. So the topics that the test has not created are created before the run.
        await self._service.run(create_topics=True, on_ready=self._ready.set)

    def _raise_failure(self) -> None:
        if self._error is not None:
            error, self._error = self._error, None
            raise error
