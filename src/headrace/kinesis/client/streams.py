"""A stream's name and its ARN: each is taken where the other is."""

from __future__ import annotations

from headrace.errors import ConfigError


def stream_arguments(stream: str) -> dict[str, str]:
    """Return how a call of Kinesis names a stream."""
    return {"StreamARN": stream} if is_arn(stream) else {"StreamName": stream}


def is_arn(stream: str) -> bool:
    """Whether it is an ARN, not a name."""
    return stream.startswith("arn:")


def stream_name(stream: str) -> str:
    """Return the name of a stream that is given by name or ARN.

    Raises:
        ConfigError: It is an ARN of something else.
    """
    if not is_arn(stream):
        return stream
    parts = stream.split(":", 5)
    kind, _, name = parts[-1].partition("/")
    if len(parts) != 6 or parts[2] != "kinesis" or kind != "stream" or not name or "/" in name:
        raise ConfigError(
            f"{stream!r} is no ARN of a stream: one is arn:aws:kinesis:<region>:<account>:stream/<name>"
        )
    return name
