"""The options of an accepted socket."""

from __future__ import annotations

import socket

from headrace.server.limits import ServerLimits


def set_socket_options(sock: socket.socket, limits: ServerLimits) -> None:
    """Turn on TCP_NODELAY and keepalive: small responses leave at once, and a vanished client is noticed."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (
        ("TCP_KEEPIDLE", limits.keepalive_idle_s),
        ("TCP_KEEPINTVL", limits.keepalive_interval_s),
        ("TCP_KEEPCNT", limits.keepalive_probes),
    ):
        if hasattr(
            socket, name
        ):  # other systems have other names for these options, and all have defaults
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
