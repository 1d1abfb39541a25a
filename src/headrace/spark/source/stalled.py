"""Reads that get nothing for too long, in words."""

from __future__ import annotations

from headrace.clients.blocking import FetchedPartition
from headrace.clients.trouble import advised
from headrace.errors import ApiError, HeadraceError, TransportError


def stalled(what: str, fetched: FetchedPartition) -> HeadraceError:
    """Return the error of a read that has got nothing for too long: with the last error, and what to do about it.

    Args:
        what: What was not read in time.
        fetched: What the partition gave last.
    """
    if not fetched.error:
        why = "the brokers answered without records: see whether a quota holds this client back"
        return TransportError(f"{what}; {why}")
    last = ApiError.for_code(fetched.error, fetched.reason or fetched.error.description)
    return ApiError.for_code(fetched.error, f"{what}; last error: {advised(last)}")
