"""Detects closed clients on connections that are not read.

A connection with the greatest number of requests in flight is not read, and asyncio does not watch it. The end of the
stream would be noticed only after the next response, which can be minutes later for long polls.
"""

from __future__ import annotations

import select
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from headrace.server.connections.connection import Connection

_PEER_CLOSED: Final = getattr(select, "POLLRDHUP", 0)
"""The poll event of a client that sends no more; 0 on systems that report only that both directions are closed."""


def notice_closed(connections: Iterable[Connection]) -> None:
    """Call `peer_closed` of each connection that is not read and whose client has closed."""
    deaf = {connection.fileno(): connection for connection in connections if connection.deaf}
    if not deaf or not hasattr(select, "poll"):
        return
    poll = select.poll()
    for descriptor in deaf:
        poll.register(descriptor, _PEER_CLOSED)
    for descriptor, _ in poll.poll(0):
        deaf[descriptor].peer_closed()
