"""ListTransactions (API key 66), versions 0-2.

Behaviour:
* The response lists the transactional ids that the client may describe and that pass the filters, in no particular
  order. It also lists the filters that are not names of states.
* The duration counts from the start of the last transaction of an id, whether or not that transaction has ended. As in
  Kafka an id without a transaction passes every duration.
* A pattern is a regular expression in RE2's syntax that has to match the whole id. It has bounds
  (docs/reference/limits.md). An invalid pattern is INVALID_REGULAR_EXPRESSION.
Versions: v0 flexible; v1 duration; v2 pattern.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Final

from headrace.broker.bounds.expressions import Expression
from headrace.broker.context import RequestContext
from headrace.broker.services import Services
from headrace.broker.waiting.steps import ENTRY_COST, Work, value_of
from headrace.core.coordinator.transaction.views import STATE_NAMES, Filter, Known, listed, passes
from headrace.errors import ApiError, ErrorCode
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.messages.list_transactions import (
    ListTransactionsRequest,
    ListTransactionsResponse,
)
from headrace.protocol.versions import VersionRange
from headrace.security.acls import Operation, ResourceType

API_KEY: Final = ApiKey.LIST_TRANSACTIONS
VERSIONS: Final = VersionRange(0, 2)

_KNOWN_COST: Final = ENTRY_COST // 20
"""The cost of checking an id that is not listed."""


def handle(
    services: Services, context: RequestContext, request: ListTransactionsRequest
) -> Work[ListTransactionsResponse]:
    """List the transactional ids that match the filters."""
    try:
        return (yield from _listed(services, context, request))
    except ApiError as error:  # the pattern is invalid, or takes too long
        return ListTransactionsResponse(error_code=error.code)


def _listed(
    services: Services, context: RequestContext, request: ListTransactionsRequest
) -> Work[ListTransactionsResponse]:
    pattern = None
    if request.transactional_id_pattern:
        instead = "list without a pattern"
        pattern = Expression(request.transactional_id_pattern, "TransactionalIdPattern", instead)
    response = ListTransactionsResponse(
        unknown_state_filters=[name for name in request.state_filters if name not in STATE_NAMES]
    )
    states = {STATE_NAMES[name] for name in request.state_filters if name in STATE_NAMES}
    if request.state_filters and not states:
        return response
    wanted = Filter(states, frozenset(request.producer_id_filters), request.duration_filter)
    may_describe = partial(
        services.permissions.allows,
        context,
        Operation.DESCRIBE,
        ResourceType.TRANSACTIONAL_ID,
        quietly=True,
    )
    for reply in services.transactions.coordinator.each_shard(context.now_ms):
        waiting: Work[Sequence[Known] | ErrorCode] = value_of(reply)
        known = yield from waiting
        if isinstance(known, ErrorCode):
            return ListTransactionsResponse(
                error_code=known, unknown_state_filters=response.unknown_state_filters
            )
        yield ENTRY_COST + len(known) * _KNOWN_COST
        for name, metadata in known:
            cost = _KNOWN_COST
            if passes(metadata, wanted, context.now_ms):
                cost = ENTRY_COST
                if pattern is not None:
                    yield pattern.cost(name)
                if (pattern is None or pattern.matches(name)) and may_describe(name):
                    response.transaction_states.append(listed(name, metadata))
            yield cost
    return response
