"""Every bound of the server in one place, and what happens at it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

KIB: Final = 1024
MIB: Final = 1024 * 1024


@dataclass(frozen=True, slots=True)
class ServerLimits:
    """Bounds of connections, requests and memory. The defaults suit one process on a small machine.

    Attributes:
        max_request_bytes: largest Produce request (Kafka's `socket.request.max.bytes`); beyond: closed.
        max_other_request_bytes: largest request of any other API; beyond: closed.
        max_unauthenticated_bytes: largest request of a client that has to authenticate first; beyond: closed
            (`sasl.server.max.receive.size`). It has one request in flight.
        authentication_timeout_ms: a client has not authenticated so long after it connected: closed.
        max_requests_in_flight: unanswered requests of a connection; at it: nothing more is read from it.
        max_queued_bytes: response bytes that a connection has not taken yet; above: nothing more is read
            from it until half of them are gone.
        memory_budget_bytes: receive buffers (beyond the first `initial_buffer_bytes` of each connection); at
            it: connections wait for their turn to grow, one at a time goes on.
        initial_buffer_bytes: receive buffer of a fresh or idle connection.
        busy_buffer_bytes: size up to which a connection's buffer grows when it is found full.
        idle_timeout_ms: the time without a request and without a response in flight after which a connection is closed
        (`connections.max.idle.ms`).
        handshake_timeout_ms: a TLS handshake takes longer: closed.
        frame_timeout_ms: the rest of a request does not come: closed after so long without a byte, or
            when it comes slower than `min_bytes_per_second` on average.
        min_bytes_per_second: see there.
        write_timeout_ms: the client takes no byte of its answers for so long: closed.
        max_connections: at it: a new connection is closed at once.
        max_connections_per_address: the same for one client address; loopback is exempt.
        max_connection_rate_per_address: new connections a second of one client address; beyond: closed at
            once; loopback is exempt.
        max_topics_per_request: topics (or groups, resources, ...) that one request names; beyond: closed.
        keepalive_idle_s: no byte for so long: the system asks the client's machine whether it still has the
            connection, and closes it when `keepalive_probes` questions, `keepalive_interval_s` apart, get no answer.
        keepalive_interval_s: see there.
        keepalive_probes: see there.
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
