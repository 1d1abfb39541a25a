"""The way of a request to its handler, and back: the registry, the version check, the audit log, and the quotas.

`Broker.handle` looks a request up in `HANDLERS`. The table contains each handler of the registry `handlers/` under the
versions that it serves, wrapped with the audit rule of its API if there is one. While there are quotas the shell also
has the broker `throttle` the request.
"""

from __future__ import annotations

from functools import partial
from types import GeneratorType
from typing import Any, Final, TypeVar

from headrace.broker.access.audit_rules import RULES, Rule
from headrace.broker.apis import Api
from headrace.broker.context import CloseConnection, RequestContext
from headrace.broker.handler import Handler
from headrace.broker.handlers import REGISTRY
from headrace.broker.quotas.client_quotas import PRODUCER_BYTE_RATE, REQUEST_PERCENTAGE
from headrace.broker.quotas.throttling import (
    PERCENT_SECONDS_PER_US,
    Throttled,
    Throttling,
    client_of,
    pause_in,
    with_pause,
)
from headrace.broker.services import Services
from headrace.broker.waiting.steps import ENTRY_COST, Work
from headrace.deferred import Deferred
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.codec import Message

Request = TypeVar("Request")
Response = TypeVar("Response")

_AUDIT_COST: Final = 8 * ENTRY_COST
"""The cost of an entry of the audit log."""
CHANGING: Final = frozenset(RULES) | {
    ApiKey.PRODUCE,
    ApiKey.ADD_PARTITIONS_TO_TXN,
    ApiKey.TXN_OFFSET_COMMIT,
}
"""The APIs that change stored state. Their requests are completed also if the connection of the client is closed."""


class _Handlers(dict[tuple[int, int], Handler[Any, Any]]):
    """The handlers by API key and version. A lookup with `[]` of another version closes the connection."""

    def __missing__(self, api_version: tuple[int, int]) -> Handler[Any, Any]:
        key, version = api_version
        raise CloseConnection(f"API {key} version {version} is not supported")


def _audited(
    handle: Handler[Request, Response], rule: Rule[Request, Response] | None
) -> Handler[Request, Response]:
    """Return a handler that also writes its changes to the audit log; the same handler if there is no rule."""
    if rule is None:
        return handle

    def handle_audited(
        services: Services, context: RequestContext, request: Request, /
    ) -> Response | Deferred[Any] | Work[Any] | None:
        def note(response: Any) -> Any:
            for what, fields in rule(request, response):
                services.audit.changed(context, what, **fields)
            return response

        def noted(reply: Any) -> Any:
            if not isinstance(reply, Deferred):
                return note(reply)
            audited: Deferred[Any] = Deferred()
            # Not by `map`: the change is logged also if the connection of the client is closed before the response.
            reply.on_done(lambda response: audited.resolve(note(response)))
            return audited

        def in_steps(steps: Work[Any]) -> Work[Any]:
            reply = yield from steps
            if isinstance(reply, Deferred):
                return noted(reply)
            for what, fields in rule(request, reply):
                services.audit.changed(context, what, **fields)
                yield _AUDIT_COST
            return reply

        reply: Any = handle(services, context, request)
        audited_reply: Response | Deferred[Any] | Work[Any] | None = (
            in_steps(reply) if isinstance(reply, GeneratorType) else noted(reply)
        )
        return audited_reply

    return handle_audited


APIS: Final[tuple[Api, ...]] = tuple(
    Api(module.API_KEY, module.VERSIONS, getattr(module, "SERVED", module.VERSIONS))
    for module in REGISTRY
)
"""The APIs that the broker serves, in the order of their keys."""

HANDLERS: Final = _Handlers(
    ((api.key, version), _audited(module.handle, RULES.get(api.key)))
    for api, module in zip(APIS, REGISTRY, strict=True)
    for version in range(api.served.min, api.served.max + 1)
)
"""The handlers, each with what it writes to the audit log."""


def throttle(
    throttling: Throttling,
    context: RequestContext,
    request: Message,
    reply: Message | Deferred[Any] | None,
    *,
    request_bytes: int,
    used_us: int,
) -> Throttled:
    """Charge a handled request to its client, and write the pause of the client into the reply.

    Args:
        throttling: The rates of clients.
        context: The context of the request.
        request: The request.
        reply: The reply of its handler.
        request_bytes: The size of the request. Only the bytes of produce requests are charged.
        used_us: How long the request took, in microseconds, without what `Session.unpaid_us` has.
    """
    client, now_ms = client_of(context), context.now_ms
    pause_ms = 0
    if request.API_KEY == ApiKey.PRODUCE:
        pause_ms = throttling.charge(PRODUCER_BYTE_RATE, client, request_bytes, now_ms)
    session = context.session
    share = (used_us + session.unpaid_us) * PERCENT_SECONDS_PER_US
    session.unpaid_us = 0
    by_time_ms = throttling.charge(REQUEST_PERCENTAGE, client, share, now_ms)
    pause_ms = max(pause_ms, min(by_time_ms, throttling.windows.size_ms))
    if isinstance(reply, Deferred):
        return Throttled(reply.map(partial(with_pause, pause_ms)) if pause_ms else reply, pause_ms)
    if reply is None:
        return Throttled(None, pause_ms)
    return Throttled(with_pause(pause_ms, reply), max(pause_ms, pause_in(reply)))
