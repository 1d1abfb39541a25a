"""What the handlers of transactions share."""

from __future__ import annotations

from typing import Final

from headrace.broker.context import RequestContext
from headrace.errors import ErrorCode
from headrace.protocol.api_keys import ApiKey

_FENCED_SINCE: Final = {ApiKey.INIT_PRODUCER_ID: 4}
_FENCED_SINCE_DEFAULT: Final = 2


def for_version(error: ErrorCode, context: RequestContext) -> ErrorCode:
    """Return the code that clients of a version know for a producer that has been replaced (KIP-588)."""
    header = context.header
    since = _FENCED_SINCE.get(ApiKey(header.api_key), _FENCED_SINCE_DEFAULT)
    if error is ErrorCode.PRODUCER_FENCED and header.api_version < since:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    return error
