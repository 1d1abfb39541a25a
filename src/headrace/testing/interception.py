"""A broker whose requests a test can inspect and answer in place of the broker."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from headrace.broker.broker import Broker as CoreBroker
from headrace.broker.context import RequestContext
from headrace.clients.drivers.local_target import LocalClient
from headrace.core.deadlines import Deadlines
from headrace.deferred import Deferred
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.codec import Message

Reply = Message | Deferred[Any] | None
"""The response to a request; None: no response, as with acks=0."""


class Exchange:
    """A received request, and the ways to answer it."""

    __slots__ = ("context", "core", "request")

    def __init__(self, core: InterceptedBroker, context: RequestContext, request: Any) -> None:
        self.core = core
        """The core of the broker, without its shell."""
        self.context = context
        """The client, the time and the listener of the request; its `header` has the version."""
        self.request = request
        """The request, a class of `headrace.protocol.messages`."""

    @property
    def api(self) -> ApiKey:
        """The API of the request."""
        return ApiKey(self.request.API_KEY)

    @property
    def version(self) -> int:
        """The version of request and response."""
        return self.context.header.api_version

    @property
    def client_id(self) -> str | None:
        """The client id in the request."""
        return self.context.header.client_id

    def proceed(self) -> Reply:
        """Let the broker handle the request, without faults."""
        return self.core.handle_undisturbed(self.context, self.request)

    def later(self, reply: Reply, delay_s: float) -> Reply:
        """Delay a reply for a number of seconds of the broker's clock."""
        if reply is None:
            return None
        return self.core.hold_back(reply, self.context.now_ms + round(delay_s * 1000))


Asker = LocalClient | str
"""The client that sends a request: a client in this process, or HOST:PORT of a connection."""
_MAKE_TOPICS: Final = frozenset({ApiKey.CREATE_TOPICS, ApiKey.METADATA})


class InterceptedBroker(CoreBroker):
    """A broker that calls a function before it handles a request, and another one after its state may have changed.

    Attributes:
        intercept: Called with each request; returns the reply. None lets the broker handle all requests.
        changed: Called after each request and each tick. None calls nothing.
        asker: The client in this process whose request is handled. None for requests of other processes.
        makers: The clients that have created topics, by topic.
        requests: The number of handled requests.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.intercept: Callable[[Exchange], Reply] | None = None
        self.changed: Callable[[], object] | None = None
        self.asker: LocalClient | None = None
        self.makers: dict[str, Asker] = {}
        self.requests = 0
        self._held_back: dict[Deferred[Any], Message | Deferred[Any]] = {}
        self._due: Deadlines[Deferred[Any]] = Deadlines()

    def handle(self, context: RequestContext, request: Message) -> Reply:
        """Answer one request; see `CoreBroker.handle`."""
        self.requests += 1
        try:
            if request.API_KEY in _MAKE_TOPICS:
                return self._handle_noting_topics(context, request)
            return self._handle(context, request)
        finally:
            self._report_change()

    def _handle_noting_topics(self, context: RequestContext, request: Message) -> Reply:
        before = len(self.services.topics)
        try:
            return self._handle(context, request)
        finally:
            if len(self.services.topics) != before:
                asker = self.asker or context.client_address
                for topic in self.services.topics:
                    self.makers.setdefault(topic.name, asker)

    def _handle(self, context: RequestContext, request: Message) -> Reply:
        if self.intercept is None:
            return super().handle(context, request)
        return self.intercept(Exchange(self, context, request))

    def handle_undisturbed(self, context: RequestContext, request: Message) -> Reply:
        """Handle one request without faults."""
        return super().handle(context, request)

    def hold_back(self, reply: Message | Deferred[Any], until_ms: int) -> Deferred[Any]:
        """Return a deferred reply that is resolved at a time, and not before."""
        held: Deferred[Any] = Deferred()
        held.on_cancel(lambda: self._forget(held))
        self._held_back[held] = reply
        self._due.set(held, until_ms)
        return held

    def _forget(self, held: Deferred[Any]) -> None:
        """Drop a delayed reply, because the client no longer waits for it."""
        self._due.cancel(held)
        reply = self._held_back.pop(held, None)
        if isinstance(reply, Deferred):
            reply.cancel()

    def release(self) -> None:
        """Send all delayed replies."""
        held_back, self._held_back = self._held_back, {}
        for held, reply in held_back.items():
            self._due.cancel(held)
            self._resolve(held, reply)

    @property
    def next_deadline_ms(self) -> int | None:
        """The latest time for the next `tick`; None if nothing depends on the time."""
        moments = (super().next_deadline_ms, self._due.next_ms)
        return min((at for at in moments if at is not None), default=None)

    def tick(self, now_ms: int) -> None:
        """Do what is due, and send the delayed replies that are due."""
        super().tick(now_ms)
        for held in self._due.expire(now_ms):
            self._resolve(held, self._held_back.pop(held))
        self._report_change()

    @staticmethod
    def _resolve(held: Deferred[Any], reply: Message | Deferred[Any]) -> None:
        if isinstance(reply, Deferred):
            held.follow(reply)
        else:
            held.resolve(reply)

    def finish_sync(self, *arguments: Any) -> None:
        """Handle the outcome of a sync; see `CoreBroker.finish_sync`."""
        super().finish_sync(*arguments)
        self._report_change()

    def _report_change(self) -> None:
        if self.changed is not None:
            self.changed()
