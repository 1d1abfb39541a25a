"""Decide whether and when a failed pipeline is restarted."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

FINAL: Final = (
    "AnalysisException",
    "ParseException",
    "ConfigError",
    "ConfigException",
    "DataLossError",
    "DecodeError",
    "OffsetOutOfRangeException",
    "DeserializationError",
    "SerializationError",
    "STREAMING_STATEFUL_OPERATOR_NOT_MATCH_IN_STATE_METADATA",
    "STATE_STORE_KEY_SCHEMA_NOT_COMPATIBLE",
    "STATE_STORE_VALUE_SCHEMA_NOT_COMPATIBLE",
    "MALFORMED_RECORD_IN_PARSING",
    "ModuleNotFoundError",
    "SyntaxError",
)
"""Names in the text of failures that a restart does not repair.

All other failures may be transient: an unavailable broker, a full disk, a killed worker. `RestartBackoff.attempts`
limits the restarts if the failure is permanent after all.
"""
_NAMES: Final = re.compile(rf"(?<![A-Za-z0-9_])(?:{'|'.join(FINAL)})(?![A-Za-z0-9_])")


def is_final(failure: str) -> bool:
    """Return whether a failure would occur again after a restart, judging by Spark's text for it."""
    return _NAMES.search(failure) is not None


@dataclass(frozen=True)
class RestartBackoff:
    """The number of restarts in a row, and their delays: each is twice the delay before, up to a limit."""

    first_s: float = 1.0
    longest_s: float = 60.0
    attempts: int = 10

    def wait_s(self, failures: int) -> float | None:
        """Return the delay in seconds after a number of failures in a row; None to stop restarting.

        A finished batch resets the number of failures. So a batch that always fails ends the pipeline after `attempts`
        restarts. With the defaults a pipeline survives an outage of about five minutes.
        """
        if failures > self.attempts:
            return None
        return float(min(self.first_s * 2 ** (failures - 1), self.longest_s))


_GONE: Final = re.compile(
    r"(?:Py4JError|Py4JNetworkError|ConnectionRefusedError|ConnectionResetError|BrokenPipeError): "
)
"""The exceptions in the driver after the JVM was killed."""
_CAUSES: Final = re.compile(
    r"^(?:[a-z_]+\.)*(?P<kind>[A-Z]\w*(?:Error|Exception)): (?P<text>.+)$", re.MULTILINE
)


def summary(failure: str) -> str:
    """Return the line of a failure that names the cause.

    Spark wraps the exception of Python code in several pages of text. The cause is the last line of the innermost
    traceback.
    """
    if _GONE.match(failure):
        return "Spark's JVM has ended; its log may have the reason"
    python = failure.rfind("Traceback (most recent call last)")
    if python >= 0 and (found := _CAUSES.search(failure, python)):
        kind, text = found["kind"], found["text"].strip()
        return (
            text if kind in {"ConfigError", "DataLossError", "DecodeError"} else f"{kind}: {text}"
        )
    lines = [line.strip() for line in failure.splitlines() if line.strip()]
    return lines[0] if lines else "it failed without a message"
