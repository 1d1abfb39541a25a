"""Notices that a client has closed although nothing is read from its connection.

While a connection has as many requests in flight as it may, it is not read, and asyncio does not watch it: the end of
the stream would be noticed only when an answer has been written, which for long polls may be minutes later.
"""

from __future__ import annotations

import select
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from headrace.server.connection import Connection

_PEER_CLOSED: Final = getattr(select, "POLLRDHUP", 0)
"""The client sends no more. Where the system has no such event, poll tells at least that both directions are closed."""


def notice_closed(connections: Iterable[Connection]) -> None:
    """Tell the connections that are not read, and whose responses wait, when their clients have closed."""
    deaf = {connection.fileno(): connection for connection in connections if connection.deaf}
    if not deaf or not hasattr(select, "poll"):
        return
    poll = select.poll()
    for descriptor in deaf:
        poll.register(descriptor, _PEER_CLOSED)
    for descriptor, _ in poll.poll(0):
        deaf[descriptor].peer_closed()
