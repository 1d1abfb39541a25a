"""The error of a read that receives no records for too long."""

from __future__ import annotations

from headrace.clients.blocking import FetchedPartition
from headrace.clients.trouble import advised
from headrace.errors import ApiError, HeadraceError, TransportError


def stalled(what: str, fetched: FetchedPartition) -> HeadraceError:
    """Make the error of a read that received no records for too long, with the last error and a remedy.

    Args:
        what: Describes what was not read in time.
        fetched: The last response for the partition.
    """
    if not fetched.error:
        why = "the brokers answered without records: see whether a quota throttles this client"
        return TransportError(f"{what}; {why}")
    last = ApiError.for_code(fetched.error, fetched.reason or fetched.error.description)
    return ApiError.for_code(fetched.error, f"{what}; last error: {advised(last)}")
