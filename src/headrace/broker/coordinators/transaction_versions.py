"""The differences between versions of the transaction APIs, for their handlers."""

from __future__ import annotations

from typing import Final

from headrace.broker.context import RequestContext
from headrace.errors import ErrorCode
from headrace.protocol.api_keys import ApiKey

_FENCED_SINCE: Final = {ApiKey.INIT_PRODUCER_ID: 4}
_FENCED_SINCE_DEFAULT: Final = 2


_EPOCH_BUMP_SINCE: Final = {ApiKey.END_TXN: 5, ApiKey.TXN_OFFSET_COMMIT: 5}


def bumps_epoch(context: RequestContext) -> bool:
    """Return whether a request uses transaction version 2 (KIP-890): each transaction has an epoch of its own."""
    header = context.header
    return header.api_version >= _EPOCH_BUMP_SINCE[ApiKey(header.api_key)]


def for_version(error: ErrorCode, context: RequestContext) -> ErrorCode:
    """Return the error code that clients of this version know for a fenced producer (KIP-588)."""
    header = context.header
    since = _FENCED_SINCE.get(ApiKey(header.api_key), _FENCED_SINCE_DEFAULT)
    if error is ErrorCode.PRODUCER_FENCED and header.api_version < since:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    return error
