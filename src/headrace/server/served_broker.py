"""The interface of a broker that a server serves. `headrace.broker.broker.Broker` implements it."""

from __future__ import annotations

from typing import Any, Protocol

from headrace.broker.context import RequestContext
from headrace.broker.quotas.client_quotas import ClientQuotas
from headrace.broker.quotas.throttling import Throttled
from headrace.broker.session import Session
from headrace.broker.waiting.steps import Work
from headrace.config.broker import BrokerConfig
from headrace.protocol.codec import Message
from headrace.server.threads.compactor import Step
from headrace.server.threads.syncer import Batch


class ServedBroker(Protocol):
    """A broker, as the hub, the syncer and the compactor use it."""

    @property
    def quotas(self) -> ClientQuotas:
        """The quotas of clients. While `quotas.active` is true, the hub measures requests and calls `throttle`."""

    @property
    def config(self) -> BrokerConfig:
        """The configuration in force; another object after every change."""

    @property
    def next_deadline_ms(self) -> int | None:
        """The time at which `tick` is due; None if there is no such time."""

    def handle(self, context: RequestContext, request: Any) -> Any:
        """Return a response, a `Deferred` of a response, or None. Raise `CloseConnection` to close the connection."""

    def throttle(
        self, context: RequestContext, request: Any, reply: Any, *, request_bytes: int, used_us: int
    ) -> Throttled:
        """Charge a request to its client. Return the reply to send, and how long to mute the connection."""

    def finish_in_steps(self, work: Work[Any], session: Session) -> Any:
        """Do work on a response. Return its result, or a `Deferred` of the result if the work takes several steps."""

    def unsupported_version(self) -> Message:
        """Return the response to an ApiVersions request of unknown version."""

    def tick(self, now_ms: int) -> None:
        """Do everything whose deadline has passed."""

    @property
    def sync_due(self) -> bool:
        """Whether `start_sync` would return something."""

    def start_sync(self) -> Batch | None:
        """Return the logs to sync, or None."""

    def finish_sync(self, batch: Any, error: OSError | None, now_ms: int) -> None:
        """Complete the requests that waited for a sync."""

    @property
    def compaction_due(self) -> bool:
        """Whether `start_compaction` would return something."""

    def start_compaction(self) -> Step | None:
        """Return a step of a compaction, or None."""

    def finish_compaction(self, task: Any, error: Exception | None, now_ms: int) -> None:
        """Complete a step of a compaction."""
