"""The reasons to close a connection because its client does too little. Each function returns "" if there is none."""

from __future__ import annotations

from headrace.server.limits import ServerLimits


def stalled_write(
    limits: ServerLimits, queued_bytes: int, waited_ms: int, *, others_wait: bool
) -> str:
    """Check a client that has taken none of the queued bytes for some time.

    Args:
        limits: The limits of the server.
        queued_bytes: How many bytes of responses wait for the client.
        waited_ms: For how long the client has taken nothing.
        others_wait: Whether other connections wait for the memory that this connection uses.
    """
    timeout_ms = limits.write_timeout_ms
    if others_wait:
        timeout_ms = min(timeout_ms, limits.frame_timeout_ms)
    if waited_ms <= timeout_ms:
        return ""
    return f"the client took none of {queued_bytes} waiting bytes in {timeout_ms / 1000:g} s"


def stalled_frame(limits: ServerLimits, pending_bytes: int, silent_ms: int, lasted_ms: int) -> str:
    """Check a client that has sent only a part of a request.

    Args:
        limits: The limits of the server.
        pending_bytes: How many bytes of the request have arrived.
        silent_ms: The time since the last byte.
        lasted_ms: The time since the first byte.
    """
    due = limits.min_bytes_per_second * (lasted_ms - limits.frame_timeout_ms) // 1000
    if silent_ms > limits.frame_timeout_ms or pending_bytes < due:
        return f"a request of which {pending_bytes} bytes came in {lasted_ms / 1000:g} s, and not its rest"
    return ""


def stalled_authentication(limits: ServerLimits, open_ms: int) -> str:
    """Check a client that has not authenticated `open_ms` after it connected."""
    limit_ms = limits.authentication_timeout_ms
    return (
        "" if open_ms <= limit_ms else f"the client has not authenticated in {limit_ms / 1000:g} s"
    )
