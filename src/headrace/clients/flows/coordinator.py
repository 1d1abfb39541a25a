"""Look-up of the coordinator of a group or a transactional id, and requests to the coordinator of a group."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from headrace.clients.flows import metadata
from headrace.clients.flows.cluster import BrokerAddress
from headrace.clients.flows.effects import GROUP_CHANNEL, Call, ClientState, Flow, ask
from headrace.errors import ApiError, ErrorCode, TransportError
from headrace.protocol.codec import Message
from headrace.protocol.messages.find_coordinator import (
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)

R = TypeVar("R", bound=Message)

GROUP_KEY_TYPE = 0
TRANSACTION_KEY_TYPE = 1

LOST_COORDINATOR_ERRORS = frozenset(
    {ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE}
)


def find_coordinator(state: ClientState, group: str, key_type: int = GROUP_KEY_TYPE) -> Flow[int]:
    """Return the node id of the coordinator of a group or transactional id; request it if it is unknown."""
    backoff = state.backoff()
    nodes = _nodes(state, key_type)
    while (known := nodes.get(group)) is None or known not in state.metadata.brokers:
        # Older versions send `key`, newer ones `coordinator_keys` (KIP-699). Both are set.
        request = FindCoordinatorRequest(key=group, key_type=key_type, coordinator_keys=[group])
        try:
            response = yield from ask(Call(request=request), FindCoordinatorResponse)
        except TransportError as error:
            yield backoff.after(error)
            continue
        address, error_code, message = _read(response, group)
        if not error_code:
            if address.node_id not in state.metadata.brokers:
                yield from metadata.refresh(state, ())
            state.metadata.brokers.setdefault(address.node_id, address)
            nodes[group] = address.node_id
            continue
        failure = ApiError.for_code(error_code, message or "")
        if not failure.retriable:
            raise failure
        yield backoff.after(failure)
    return known


def _read(response: FindCoordinatorResponse, group: str) -> tuple[BrokerAddress, int, str | None]:
    for found in response.coordinators:
        if found.key == group:
            address = BrokerAddress(found.node_id, found.host, found.port)
            return address, found.error_code, found.error_message
    address = BrokerAddress(response.node_id, response.host, response.port)
    return address, response.error_code, response.error_message


def ask_coordinator(
    state: ClientState,
    group: str,
    request: Message,
    response_type: type[R],
    error_of: Callable[[R], int],
    *,
    timeout_ms: int | None = None,
    attempts: int | None = None,
    channel: str = GROUP_CHANNEL,
) -> Flow[R]:
    """Send a request to the coordinator of a group, and return its response.

    If the coordinator has moved, is loading or cannot be reached, this looks it up and retries. The caller handles
    every other error code. `error_of` returns the error code of a response for the group. If `timeout_ms` is None, it
    is `request.timeout.ms`; if `attempts` is None, the flow retries until the deadline.
    """
    backoff = state.backoff()
    while True:
        node = yield from find_coordinator(state, group)
        call = Call(request=request, node=node, channel=channel, timeout_ms=timeout_ms)
        try:
            response = yield from ask(call, response_type)
        except TransportError as error:
            forget(state, group)
            if attempts is not None and backoff.attempts + 1 >= attempts:
                raise
            yield backoff.after(error)
            continue
        code = error_of(response)
        if code in LOST_COORDINATOR_ERRORS:
            forget(state, group)
        elif code != ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
            return response
        failure = ApiError.for_code(code)
        if attempts is not None and backoff.attempts + 1 >= attempts:
            raise failure
        yield backoff.after(failure)


def forget(state: ClientState, group: str, key_type: int = GROUP_KEY_TYPE) -> None:
    """Forget the coordinator, so that the next request looks it up."""
    _nodes(state, key_type).pop(group, None)


def _nodes(state: ClientState, key_type: int) -> dict[str, int]:
    return state.coordinators if key_type == GROUP_KEY_TYPE else state.transaction_coordinators


def raise_for(error_code: int, text: str) -> None:
    """Raise an ApiError whose message begins with `text`, unless the code is NONE."""
    if error_code:
        raise ApiError.for_code(error_code, f"{text}: {ErrorCode(error_code).description}")
