"""The limits of the server, and what happens when a client exceeds them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

KIB: Final = 1024
MIB: Final = 1024 * 1024

HANDOVER_TIMEOUT_S: Final = 30
"""The time after which a broker ends although it still leads partitions that others could lead, in seconds."""


@dataclass(frozen=True, slots=True)
class ServerLimits:
    """The limits on connections, requests and memory. The defaults suit one process on a small machine.

    Attributes:
        max_request_bytes: The size of the largest Produce request (`socket.request.max.bytes`). The connection of a
            larger request is closed.
        max_other_request_bytes: The size of the largest request of any other API. The connection of a larger request is
            closed.
        max_unauthenticated_bytes: The size of the largest request before authentication
            (`sasl.server.max.receive.size`). The connection of a larger request is closed. Such a client has one
            request in flight.
        authentication_timeout_ms: The time after which a connection without authentication is closed.
        max_requests_in_flight: The number of requests of a connection in flight at which the server stops reading from
            it.
        max_queued_bytes: The bytes of responses that a client has not read above which the server stops reading from
            it. The server continues when half of them are read.
        memory_budget_bytes: The memory of all receive buffers beyond `initial_buffer_bytes` each. When it is used up,
            connections wait to grow, and one at a time continues.
        initial_buffer_bytes: The receive buffer of a new or idle connection.
        busy_buffer_bytes: The size to which a receive buffer grows when it is found full.
        idle_timeout_ms: The time without requests and without responses in flight after which a connection is closed
            (`connections.max.idle.ms`).
        handshake_timeout_ms: The time after which a connection with an incomplete TLS handshake is closed.
        frame_timeout_ms: The time without a byte of an incomplete request after which a connection is closed. After
            this time the request must also arrive at `min_bytes_per_second`.
        min_bytes_per_second: The least rate of an incomplete request in bytes per second, on average.
        write_timeout_ms: The time after which a connection is closed if the client reads none of its responses.
        max_connections: The number of connections at which a new connection is closed at once.
        max_connections_per_address: The number of connections of one client address at which a new connection is closed
            at once. Loopback addresses are exempt.
        max_connection_rate_per_address: The number of new connections of one client address in a second above which a
            new connection is closed at once. Loopback addresses are exempt.
        max_topics_per_request: The number of topics, groups or resources that a request may name. The connection of a
            larger request is closed.
        keepalive_idle_s: The time without a byte, in seconds, after which the system sends keepalive probes.
        keepalive_interval_s: The time between two keepalive probes, in seconds.
        keepalive_probes: The number of unanswered keepalive probes after which the system closes the connection.
    """

    max_request_bytes: int = 100 * MIB
    max_other_request_bytes: int = 1 * MIB
    max_unauthenticated_bytes: int = 512 * KIB
    authentication_timeout_ms: int = 10_000
    max_requests_in_flight: int = 256
    max_queued_bytes: int = 4 * MIB
    memory_budget_bytes: int = 256 * MIB
    initial_buffer_bytes: int = 16 * KIB
    busy_buffer_bytes: int = 256 * KIB
    idle_timeout_ms: int = 600_000
    handshake_timeout_ms: int = 10_000
    frame_timeout_ms: int = 10_000
    min_bytes_per_second: int = 1 * KIB
    write_timeout_ms: int = 600_000
    max_connections: int = 10_000
    max_connections_per_address: int = 200
    max_connection_rate_per_address: int = 50
    max_topics_per_request: int = 10_000
    keepalive_idle_s: int = 60
    keepalive_interval_s: int = 10
    keepalive_probes: int = 6
