"""First contact with a cluster, and responses that differ between brokers."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, TypeVar

from headrace.clients.blocking import BlockingClient
from headrace.errors import TransportError

T = TypeVar("T")

STALE_PAUSES_S: Final = (0.2, 1.0)
"""Pauses in seconds before the second and the third request. Brokers exchange their metadata within that time."""
FIRST_CONTACT_S: Final = 5.0
"""Seconds for which a batch read or write retries refused connections: the cause is usually a wrong address."""
STREAM_CONTACT_S: Final = 10.0
"""Seconds for which a Python worker that plans the batches of a streaming write retries refused connections."""
_CONTACT_PAUSE_S: Final = 0.25


def repeat_until(request: Callable[[], T], is_complete: Callable[[T], bool]) -> T:
    """Return the first complete response, or the third response if none is complete.

    Different brokers may answer the requests, and one of them may not know of a change yet.
    """
    response = request()
    for pause_s in STALE_PAUSES_S:
        if is_complete(response):
            break
        time.sleep(pause_s)
        response = request()
    return response


def reach(client: BlockingClient, within_s: float = FIRST_CONTACT_S) -> None:
    """Connect to any broker before a job is planned. Later outages are tolerated for much longer.

    Raises:
        TransportError: Every connection was refused, or a broker that accepted one did not answer within
            `request.timeout.ms`.
    """
    deadline = time.monotonic() + within_s
    while True:
        try:
            client.connect()
        except TransportError as error:
            if time.monotonic() + _CONTACT_PAUSE_S >= deadline:
                raise TransportError(
                    f"{error}: see whether a broker runs there, and whether kafka.bootstrap.servers is right"
                ) from error
            time.sleep(_CONTACT_PAUSE_S)
        else:
            return
