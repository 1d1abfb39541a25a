"""The peers of a broker without a cluster: the broker itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from headrace.broker.context import RequestContext
from headrace.broker.dispatch import APIS
from headrace.broker.services import Services
from headrace.broker.session import PEER
from headrace.deferred import Deferred, resolved
from headrace.errors import ApiError, ErrorCode
from headrace.protocol.codec import Message
from headrace.protocol.frame import RequestHeader

CLIENT_ID = "broker"
"""The client id of requests between brokers."""


class LocalPeers:
    """Implements `headrace.ports.Peers`: the broker handles its own requests. There is no other broker."""

    __slots__ = ("_broker_id", "_handle", "_services")

    def __init__(
        self,
        broker_id: int,
        handle: Callable[[RequestContext, Message], Message | Deferred[Any] | None],
        services: Callable[[], Services],
    ) -> None:
        """Use the broker.

        Args:
            broker_id: The id of the broker.
            handle: Handles a request.
            services: Returns the parts of the broker, when it is open.
        """
        self._broker_id = broker_id
        self._handle = handle
        self._services = services

    def send(
        self,
        broker_id: int,
        request: Message,
        deadline_ms: int,  # noqa: ARG002 - the own broker always answers
    ) -> Deferred[Any]:
        """Handle a request for the own broker; see `headrace.ports.Peers`."""
        if broker_id != self._broker_id:
            return resolved(
                ApiError(ErrorCode.BROKER_NOT_AVAILABLE, f"there is no broker {broker_id}")
            )
        services, answer = self._services(), Deferred[Any]()
        key = request.API_KEY
        version = next(api.served.max for api in APIS if api.key == key)

        def handle() -> None:
            context = RequestContext(
                services.time.now_ms, RequestHeader(key, version, 0, CLIENT_ID), "", "", 0, PEER
            )
            reply = self._handle(context, request)
            if isinstance(reply, Deferred):
                answer.follow(reply)
            else:
                answer.resolve(reply)

        # The request may be sent in the middle of a change, and must find a consistent state.
        services.purgatory.deliver_later(handle)
        return answer
