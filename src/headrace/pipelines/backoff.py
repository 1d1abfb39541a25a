"""What a failure means for a pipeline: whether it is started again, and when."""

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
"""Names in a failure of which repetition changes nothing. Everything else may be a broker that is away, a full disk, a
worker that was killed; `RestartBackoff.attempts` ends what only looks like that."""
_NAMES: Final = re.compile(rf"(?<![A-Za-z0-9_])(?:{'|'.join(FINAL)})(?![A-Za-z0-9_])")


def is_final(failure: str) -> bool:
    """Return whether a failure, by the text that Spark has for it, would come again after a restart."""
    return _NAMES.search(failure) is not None


@dataclass(frozen=True)
class RestartBackoff:
    """How long to wait before a restart: twice as long each time, up to a bound; and how often in a row."""

    first_s: float = 1.0
    longest_s: float = 60.0
    attempts: int = 10

    def wait_s(self, failures: int) -> float | None:
        """Return how long to wait after a number of failures without a finished batch between them; None to give up.

        A batch that fails each time is therefore given up after `attempts` restarts, and an outage is outlived for
        about five minutes with the defaults; a finished batch begins the count anew.
        """
        if failures > self.attempts:
            return None
        return float(min(self.first_s * 2 ** (failures - 1), self.longest_s))


_GONE: Final = re.compile(
    r"(?:Py4JError|Py4JNetworkError|ConnectionRefusedError|ConnectionResetError|BrokenPipeError): "
)
"""What the driver sees of a JVM that was killed."""
_CAUSES: Final = re.compile(
    r"^(?:[a-z_]+\.)*(?P<kind>[A-Z]\w*(?:Error|Exception)): (?P<text>.+)$", re.MULTILINE
)


def summary(failure: str) -> str:
    """Return the line of a failure that says what happened.

    Spark wraps the exception of Python code in several pages; the last line of the innermost traceback is wanted.
    """
    if _GONE.match(failure):
        return "Spark's JVM has ended; its log may say why"
    python = failure.rfind("Traceback (most recent call last)")
    if python >= 0 and (found := _CAUSES.search(failure, python)):
        kind, text = found["kind"], found["text"].strip()
        return (
            text if kind in {"ConfigError", "DataLossError", "DecodeError"} else f"{kind}: {text}"
        )
    lines = [line.strip() for line in failure.splitlines() if line.strip()]
    return lines[0] if lines else "it failed and does not say why"
