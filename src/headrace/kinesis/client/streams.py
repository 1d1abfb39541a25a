"""Names and ARNs of streams. Every function accepts both."""

from __future__ import annotations

from headrace.errors import ConfigError


def stream_arguments(stream: str) -> dict[str, str]:
    """Return the argument of a Kinesis call that names a stream."""
    return {"StreamARN": stream} if is_arn(stream) else {"StreamName": stream}


def is_arn(stream: str) -> bool:
    """Whether a text is an ARN."""
    return stream.startswith("arn:")


def stream_name(stream: str) -> str:
    """Return the name of a stream that is given by name or ARN.

    Raises:
        ConfigError: The ARN does not name a stream.
    """
    if not is_arn(stream):
        return stream
    parts = stream.split(":", 5)
    kind, _, name = parts[-1].partition("/")
    if len(parts) != 6 or parts[2] != "kinesis" or kind != "stream" or not name or "/" in name:
        raise ConfigError(
            f"{stream!r} is not the ARN of a stream: write arn:aws:kinesis:<region>:<account>:stream/<name>"
        )
    return name
