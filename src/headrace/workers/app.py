"""`headrace.App`: decorators that register functions as handlers of records, and the methods that run them."""

from __future__ import annotations

import asyncio
import itertools
import re
import signal
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar, Unpack

from headrace.clients.config import ConsumerConfig, check_names
from headrace.clients.drivers import Target
from headrace.errors import ConfigError
from headrace.forking import WhenForked, handled_by_event_loop
from headrace.serdes.serde import Serde, resolve_serde
from headrace.serdes.typed import serde_of_type
from headrace.workers.core.delivery import Delivery
from headrace.workers.core.scheduler import Ordering
from headrace.workers.deduplication.declared import SeenFile, SeenTopic
from headrace.workers.deduplication.keys import SeenKeys
from headrace.workers.failure.outcomes import OnFailure, Retry
from headrace.workers.handler.signature import (
    DEFAULT_BATCH,
    Handler,
    read_handler,
    refuse_coroutines,
)
from headrace.workers.monitoring.counters import Counters, Hook
from headrace.workers.monitoring.status import WorkerStatus
from headrace.workers.output.outlet import producer_properties
from headrace.workers.service import Service
from headrace.workers.settings import (
    DEFAULT_CONCURRENCY,
    DEFAULT_TRANSACTION_MS,
    DEFAULT_TRANSACTION_RECORDS,
    DEFAULT_TRANSACTION_TIMEOUT_MS,
    Publication,
    WorkerSettings,
    as_retry,
    as_streams,
    as_topics,
)
from headrace.workers.source import StreamSelection
from headrace.workers.trial import Trial

if TYPE_CHECKING:
    from headrace.clients.properties import AppProperties, WorkerProperties

F = TypeVar("F")

_AS_GIVEN: Final = (
    "attached",
    "ordering",
    "concurrency",
    "dead_letter",
    "on_failure",
    "dedupe",
    "seen",
    "delivery",
    "transaction_ms",
    "transaction_records",
    "transaction_timeout_ms",
    "transactional_id",
)
"""Arguments of `App.worker` that `WorkerSettings` takes unchanged."""


class App:
    """Functions that handle the records of topics or of Kinesis streams.

        app = headrace.App("localhost:9092")        # or a headrace.Broker

        @app.worker("orders", group="billing", ordering="key", retry=5, dead_letter=True)
        @app.publishes("invoices")
        async def bill(order: Order, context) -> Invoice: ...

        app.run()                                   # or: headrace run module:app

    Records are handled at least once. The app commits an offset when all records before it are finished; after a crash
    the other records are handled again. With `delivery="exactly_once"` their results are in the topics exactly once.
    A decorated function is unchanged, so a test can call it. `with app.test(broker)` runs the whole app.
    """

    def __init__(
        self,
        target: Target = "127.0.0.1:9092",
        *,
        group: str | None = None,
        client_id: str = "headrace-app",
        drain_timeout_s: float = 30.0,
        commit_interval_s: float = 1.0,
        max_buffered: int = 1000,
        producer: Mapping[str, Any] | None = None,
        **properties: Unpack[AppProperties],
    ) -> None:
        """Prepare an app. It connects when it runs.

        Args:
            target: HOST:PORT, several separated by commas, or a `Broker` of this process.
            group: The consumer group of workers without `group=`.
            client_id: The client id that brokers see. Leases of streams show it with the host and the process id.
            drain_timeout_s: How long, in seconds, handlers may run on when the app stops or a partition is revoked.
                Then they are cancelled, and their records are handled again.
            commit_interval_s: The time between two commits, in seconds.
            max_buffered: The number of unfinished records at which a partition is paused.
            producer: Properties of the producers that write results, dead letters and records for retry topics:
                `{"compression_type": "zstd"}`.
            properties: Properties of all clients of the app, `request_timeout_ms=5000`.

        Raises:
            ConfigError: A property of the producers is unknown, or the app sets it itself.
        """
        self._target = target
        self._group = group
        self._client_id = client_id
        self._pace: dict[str, Any] = {
            "drain_timeout_s": drain_timeout_s,
            "commit_interval_s": commit_interval_s,
            "max_buffered": max_buffered,
        }
        self._properties = properties
        self._producer = dict(producer or {})
        producer_properties(self._producer)
        self._workers: list[WorkerSettings] = []
        self._publications: dict[Any, list[Publication]] = {}
        self._hooks: list[Hook] = []
        self._service: Service | None = None
        self.counters: dict[str, Counters] = {}
        """The counters of each worker, by the worker's name."""
        self._when_forked = WhenForked(self._forget_run)

    # Decorators

    def worker(
        self,
        topics: str | Sequence[str] | StreamSelection | None = None,
        *,
        pattern: str | re.Pattern[str] | None = None,
        attached: bool = False,
        group: str | None = None,
        name: str | None = None,
        ordering: Ordering = "partition",
        concurrency: int = DEFAULT_CONCURRENCY,
        batch: int | None = None,
        retry: Retry | int | None = None,
        dead_letter: bool | str = False,
        on_failure: OnFailure = "stop",
        dedupe: Callable[[Any], Hashable] | None = None,
        seen: SeenKeys | SeenTopic | SeenFile | None = None,
        serde: str | Serde | type[Any] | None = None,
        delivery: Delivery = "at_least_once",
        transaction_ms: int = DEFAULT_TRANSACTION_MS,
        transaction_records: int = DEFAULT_TRANSACTION_RECORDS,
        transaction_timeout_ms: int = DEFAULT_TRANSACTION_TIMEOUT_MS,
        transactional_id: str | None = None,
        **properties: Unpack[WorkerProperties],
    ) -> Callable[[F], F]:
        """Register a function that handles the records of topics or of streams.

        The handler is a coroutine function, a plain function, which runs in threads, or an object with `handle(batch)`.
        Its first parameter is the value. The annotation is the type of the value: bytes, str, dict, a msgspec.Struct, a
        dataclass or a pydantic model. `list[T]` makes it a handler of batches. A parameter named `context` gets the
        `Context`.

        Args:
            topics: The topics, one or several; or Kinesis streams, `kinesis("orders")`.
            pattern: A regular expression that the whole name of a topic must match, in place of topics.
            attached: Whether to read the topics that are attached to the group. Only Headrace's brokers support this.
            group: The consumer group; None is the group of the app.
            name: The name of the worker in counters and messages; None is the function's name.
            ordering: Which records are handled one after another: those of a "partition", of a "key", or "none".
            concurrency: The most calls of the handler that run at the same time.
            batch: The most records of a call, for handlers of batches; None is 100.
            retry: The number of attempts, or a `Retry`. None is five attempts, or one with "at_most_once".
            dead_letter: Whether failed records go to `dlq.<topic>`; or a topic, or for streams `kinesis://STREAM`.
            on_failure: Without dead letters: "stop" ends the worker before anything is lost, "skip" drops the record.
            dedupe: Returns the key of a value. A record whose key was handled before is skipped.
            seen: Keeps handled keys: `SeenTopic`, `SeenFile`, or an object of the program. None keeps them in memory.
            serde: The serde of values. None is the serde of the annotation, or else of the topic, or else bytes.
            delivery: "at_least_once"; "at_most_once"; or "exactly_once": results and offsets in one transaction.
            transaction_ms: The time between two transactions in milliseconds, with "exactly_once".
            transaction_records: The number of results at which a transaction begins earlier, with "exactly_once".
            transaction_timeout_ms: The time after which the broker aborts the transaction of a crashed worker.
            transactional_id: The transactional id; None makes a unique one.
            properties: Properties of the consumer, `max_poll_records=100`.

        Raises:
            ConfigError: The function cannot be a handler, or the arguments cannot be combined.
        """
        return self._declare({**locals()}, properties)

    def _declare(self, given: Mapping[str, Any], properties: Mapping[str, Any]) -> Callable[[F], F]:
        """Return the decorator for the arguments of `worker`."""
        _check_keys(given["dedupe"], given["seen"])
        topics, pattern = given["topics"], given["pattern"]
        if not isinstance(topics, StreamSelection):
            _check_properties(properties)
        settings = partial(
            WorkerSettings,
            topics=as_topics(topics),
            streams=as_streams(topics, properties),
            pattern=re.compile(pattern) if isinstance(pattern, str) else pattern,
            retry=as_retry(given["retry"], given["delivery"]),
            consumer={"client_id": self._client_id, **self._properties, **properties},
            **{name: given[name] for name in _AS_GIVEN},
            **self._pace,
        )
        group, serde = given["group"] or self._group, _serde(given["serde"])
        return partial(
            self._register, settings, given["name"], group, batch=given["batch"], serde=serde
        )

    def _register(
        self,
        settings: Callable[..., WorkerSettings],
        name: str | None,
        group: str | None,
        target: F,
        *,
        batch: int | None,
        serde: Serde | None,
    ) -> F:
        handler = read_handler(target)
        if group is None:
            raise ConfigError(
                f"the worker {handler.name!r} needs a group: @app.worker(..., group=NAME) or App(..., group=NAME)"
            )
        worker = settings(
            name=self._free_name(name or handler.name),
            handler=handler,
            group=group,
            batch=(batch or DEFAULT_BATCH) if handler.wants_batches else batch,
            serde=serde or _serde_of(handler),
            publications=self._publications_of(target),
        )
        shared = [each.name for each in self._workers if worker.has_id_of(each)]
        if shared:
            raise ConfigError(
                f"the workers {shared[0]!r} and {worker.name!r} have one transactional_id={worker.transactional_id!r}, "
                "and would fence each other. Give each worker an id of its own, or none: then each worker makes one"
            )
        self._workers.append(worker)
        self.counters[worker.name] = Counters()
        return target

    def publishes(
        self,
        topic: str,
        *,
        key: Callable[[Any], Any] | None = None,
        serde: str | Serde | type[Any] | None = None,
    ) -> Callable[[F], F]:
        """Write what a worker's function returns to a topic. None is not written.

        A record is finished when its result is durable. If the function handles batches, it returns a list of results.

        Args:
            topic: The topic for results.
            key: Returns the key of a result. None uses the key of the record; results of batches then have no key.
            serde: The serde of results. None is the serde of the topic. Without one, bytes and text are written as they
                are, and other values as JSON.
        """
        refuse_coroutines("key=", key)
        publication = Publication(topic, key, _serde(serde))

        def register(target: F) -> F:
            self._publications_of(target).append(publication)
            return target

        return register

    def hook(self, function: Hook) -> Hook:
        """Call a plain function with every `Event`. Can be used as a decorator.

        Args:
            function: Called with each `Event`, on the event loop. What it raises is logged and changes nothing.
        """
        refuse_coroutines("a hook", function)
        self._hooks.append(function)
        return function

    def _publications_of(self, target: Any) -> list[Publication]:
        return self._publications.setdefault(target, [])

    def _free_name(self, wanted: str) -> str:
        name, number = wanted, 2
        while name in self.counters:
            name, number = f"{wanted}-{number}", number + 1
        return name

    # Running

    def run(self) -> None:
        """Run until `stop`, SIGTERM or SIGINT. Then running handlers may finish within `drain_timeout_s`.

        A second signal does not wait for them.

        Raises:
            KeyboardInterrupt: There was a second signal.
            WorkerFailedError: A record could not be handled, and the worker has neither dead letters nor
                `on_failure="skip"`.
            HeadraceError: The brokers, topics or groups of the workers cannot be used.
        """
        try:
            asyncio.run(self._run_with_signals())
        except asyncio.CancelledError:
            raise KeyboardInterrupt from None

    async def serve(self) -> None:
        """Run on the running event loop. Unlike `run`, this leaves signals to the program."""
        await self.service().run()

    def stop(self) -> None:
        """End a running `run` or `serve` in order. Any thread may call this."""
        if self._service is not None:
            self._service.stop()

    def status(self) -> dict[str, WorkerStatus]:
        """Return the status of each worker by its name, for health checks. Any thread may call this.

        Raises:
            TimeoutError: The event loop of the app did not answer, for example because a handler blocks it.
        """
        begun = {} if self._service is None else self._service.status()
        return {
            each.name: begun.get(each.name)
            or WorkerStatus(
                name=each.name,
                group=each.group,
                state="stopped",
                counters=replace(self.counters[each.name]),
            )
            for each in self._workers
        }

    def test(self, broker: Target | None = None) -> Trial:
        """Run the app in the background of a test: `with app.test(broker) as t`.

        Args:
            broker: The broker, or its address; None creates a broker in memory.
        """
        return Trial(self.service, broker, self._properties)

    def service(self, target: Target | None = None) -> Service:
        """Return an object that runs the app once.

        Args:
            target: The brokers; None is the target of the app.
        """
        if not self._workers:
            raise ConfigError("the app has no workers: decorate a function with @app.worker(...)")
        self._service = Service(
            self._target if target is None else target,
            self._workers,
            self.counters,
            self._hooks,
            client_id=self._client_id,
            properties=self._properties,
            producer=self._producer,
        )
        return self._service

    def _forget_run(self) -> None:
        """Forget the current run in a forked child: it continues only in the parent."""
        self._service = None

    async def _run_with_signals(self) -> None:
        service = self.service()
        signals = itertools.count(1)

        def stop() -> None:
            if next(signals) == 1:
                service.stop()
            else:
                service.abort()

        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop)
        try:
            with handled_by_event_loop(signal.SIGTERM, signal.SIGINT):
                await service.run()
        finally:
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.remove_signal_handler(number)


def _serde_of(handler: Handler) -> Serde | None:
    """Return the serde of a handler's annotation, if it has one."""
    if handler.schema is None:
        return None
    try:
        serde: Serde = serde_of_type(handler.schema)
    except ConfigError as error:
        raise ConfigError(
            f"no serde can make the type in the annotation of the handler {handler.name!r}: {error}"
        ) from error
    return serde


def _serde(given: str | Serde | type[Any] | None) -> Serde | None:
    if given is None:
        return None
    serde = resolve_serde(given)
    refuse_coroutines("a serde", serde.serialize, serde.deserialize)
    return serde


_NO_PROPERTIES: Final = {
    "retries": "use @app.worker(..., retry=3) for the number of attempts; retries= is a property of producers",
    "key_serde": "handlers get keys as bytes, as context.key",
    "value_serializer": "use @app.publishes(..., serde=) for the serde of results",
    "value_deserializer": "use @app.worker(..., serde=), or the annotation of the handler, for the serde of values",
}
"""Properties that users of other clients may try, each with the Headrace way to set it."""


def _check_properties(properties: Mapping[str, object]) -> None:
    """Refuse properties that no consumer has, at the decorator and not later."""
    for name in properties:
        hint = _NO_PROPERTIES.get(name.replace(".", "_"))
        if hint is not None:
            raise ConfigError(f"unknown property {name!r} of a worker: {hint}")
    check_names(ConsumerConfig, properties.keys() - {"assignor"})


def _check_keys(dedupe: object, seen: object) -> None:
    """Refuse `seen=` without the methods of a store, and coroutine functions, which would make every key look known."""
    refuse_coroutines("dedupe=", dedupe)
    if seen is None or isinstance(seen, SeenTopic | SeenFile):
        return
    add = getattr(seen, "add", None)
    contains = getattr(type(seen), "__contains__", None)
    if contains is None or not callable(add):
        raise ConfigError(
            f"seen={seen!r} keeps no keys. Pass SeenTopic(), SeenFile(path), or an object with `key in seen` and "
            "`seen.add(key)`"
        )
    refuse_coroutines("seen=", contains, add)
