"""Errors of brokers, by their consequence for a transaction, and the errors that the program gets."""

from __future__ import annotations

from typing import Final

from headrace.errors import (
    ApiError,
    ErrorCode,
    FatalTransactionError,
    HeadraceError,
    ProducerFencedError,
)

FENCED: Final = frozenset({ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH})
FATAL: Final = FENCED | {
    ErrorCode.INVALID_TXN_STATE,
    ErrorCode.TRANSACTION_COORDINATOR_FENCED,
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    ErrorCode.INVALID_TRANSACTION_TIMEOUT,
    ErrorCode.UNSUPPORTED_VERSION,
    ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT,
    ErrorCode.INVALID_REQUEST,
}
FATAL_TO_PRODUCE: Final = FATAL - {
    ErrorCode.INVALID_PRODUCER_EPOCH,
    ErrorCode.INVALID_TXN_STATE,
    ErrorCode.INVALID_REQUEST,
}
"""The fatal errors in a response to Produce. A leader may see an old epoch, or no transaction, only because the
coordinator has just ended it; then the abort that follows finds out whether the producer is fenced."""
FORGOTTEN: Final = frozenset({ErrorCode.INVALID_PRODUCER_ID_MAPPING, ErrorCode.UNKNOWN_PRODUCER_ID})
"""The coordinator has no state of this producer any more, and so no transaction of it."""


def fatal_error(
    error: HeadraceError, transactional_id: str, *, open_ms: int, limit_ms: int
) -> FatalTransactionError:
    """Return the error of a producer that cannot be used any more.

    Args:
        error: The error of the broker.
        transactional_id: The producer's name for transactions.
        open_ms: How long the transaction has been open; 0 if there is none.
        limit_ms: The producer's `transaction.timeout.ms`.
    """
    code = error.code if isinstance(error, ApiError) else None
    if code in FENCED:
        return _fenced_error(error, transactional_id, open_ms=open_ms, limit_ms=limit_ms)
    if code == ErrorCode.INVALID_TRANSACTION_TIMEOUT:
        return FatalTransactionError(
            f"transaction.timeout.ms={limit_ms} of the transactional id {transactional_id!r} is more than the broker's "
            "transaction.max.timeout.ms: raise the broker's, or go on with a new producer, or worker, that has a lower "
            "transaction_timeout_ms"
        )
    return FatalTransactionError(
        f"the transactional id {transactional_id!r} cannot be used any more by this producer: {without_stop(error)}. "
        "Close it, and go on with a new one"
    )


def _fenced_error(
    error: HeadraceError, transactional_id: str, *, open_ms: int, limit_ms: int
) -> ProducerFencedError:
    """Return the error of a fenced producer; its text names the transaction's timeout if that may be the cause."""
    timed_out = open_ms >= limit_ms
    late = f"the transaction was open for {open_ms} ms, longer than transaction.timeout.ms={limit_ms}, or "
    return ProducerFencedError(
        f"{late if timed_out else ''}another producer has taken over the transactional id {transactional_id!r}: "
        f"{without_stop(error)}. Close this producer; a new one may go on from the committed offsets. Producers at "
        "work at the same time need ids of their own",
        timed_out=timed_out,
    )


def may_be_retried(error: HeadraceError) -> bool:
    """Whether a broker refused a request for a reason that passes."""
    return isinstance(error, ApiError) and error.retriable


def without_stop(error: BaseException | None) -> str:
    """Return the text of an error without the full stop at its end."""
    return str(error).rstrip(".")
