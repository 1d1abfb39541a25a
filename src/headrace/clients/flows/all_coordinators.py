"""A request to all brokers: each of them lists the groups and transactions that it coordinates."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeVar

from headrace.clients.flows import metadata
from headrace.clients.flows.effects import Call, ClientState, Flow
from headrace.errors import ApiError, ErrorCode, HeadraceError, ProtocolError
from headrace.protocol.codec import Message

R = TypeVar("R", bound=Message)

_NOT_READY: Final = frozenset(
    {ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.COORDINATOR_NOT_AVAILABLE}
)
"""The errors of a list after which the same broker is asked again, as in Kafka's admin client."""


def ask_all_coordinators(
    state: ClientState, request: Message, response_type: type[R], error_of: Callable[[R], int]
) -> Flow[dict[int, R]]:
    """Send a request to all brokers, and return their responses by node id.

    A broker whose coordinator is loading gets the request again: its list would not be complete, and it returns none.

    Raises:
        HeadraceError: A broker has not responded. The caller handles every other error code of a response.
    """
    backoff = state.backoff()
    yield from metadata.refresh(state, ())
    nodes = sorted(state.metadata.brokers)
    responses: dict[int, R] = {}
    while nodes:
        outcomes = yield tuple(Call(request=request, node=node) for node in nodes)
        loading, failure = [], None
        for node, outcome in zip(nodes, outcomes, strict=True):
            if isinstance(outcome, HeadraceError):
                raise outcome
            if not isinstance(outcome, response_type):
                expected = response_type.__name__
                raise ProtocolError(f"expected a {expected}, got {type(outcome).__name__}")
            code = error_of(outcome)
            if code in _NOT_READY:
                loading.append(node)
                failure = ApiError.for_code(code, f"broker {node}: {ErrorCode(code).description}")
            else:
                responses[node] = outcome
        nodes = loading
        if failure is not None:
            yield backoff.after(failure)
    return responses
