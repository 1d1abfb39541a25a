"""What can be set of a producer, and what Kinesis allows."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Final

from headrace.errors import ConfigError

MAX_RECORDS: Final = 500
MAX_REQUEST_BYTES: Final = 10 << 20
MAX_RECORD_BYTES: Final = 10 << 20
MAX_KEY_CHARACTERS: Final = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerSettings:
    """How a producer batches, repeats and gives up.

    Attributes:
        linger_ms: How long a record waits for others to fill a request.
        record_bytes: The largest record, partition key included; more than 1 MiB on streams that were set to it
            (UpdateMaxRecordSize, at most 10 MiB).
        request_bytes: The largest request; AWS takes 10 MiB, other servers and older endpoints 5 MiB.
        request_records: Records in a request.
        aggregate_bytes: User records become records of this size in the format of the Kinesis Producer Library; 0 sends
            each as a record of its own.
        ordered: Whether records of one partition key stay in the order of `send`. It costs plain records speed: one of
            a key is under way at a time.
        max_in_flight: Requests of a stream under way at a time.
        delivery_timeout_ms: How long a record is tried.
        buffer_bytes: Bytes of records that are not delivered yet; `send` waits for room.
        backoff_ms: The longest first pause after a failure; it doubles.
        backoff_max_ms: The longest pause.
    """

    linger_ms: int = 20
    record_bytes: int = 1 << 20
    request_bytes: int = 5 << 20
    request_records: int = MAX_RECORDS
    aggregate_bytes: int = 0
    ordered: bool = True
    max_in_flight: int = 8
    delivery_timeout_ms: int = 120_000
    buffer_bytes: int = 32 << 20
    backoff_ms: int = 100
    backoff_max_ms: int = 5_000

    def __post_init__(self) -> None:
        """Refuse what cannot work.

        Raises:
            ConfigError: It says which setting, and why.
        """
        for field in fields(self):
            least = 0 if field.name in {"linger_ms", "aggregate_bytes", "ordered"} else 1
            if getattr(self, field.name) < least:
                raise ConfigError(
                    f"{field.name}={getattr(self, field.name)}: it is at least {least}"
                )
        limits = {
            "record_bytes": MAX_RECORD_BYTES,
            "request_bytes": MAX_REQUEST_BYTES,
            "request_records": MAX_RECORDS,
            "aggregate_bytes": self.record_bytes,
        }
        for name, limit in limits.items():
            if getattr(self, name) > limit:
                raise ConfigError(f"{name}={getattr(self, name)}: Kinesis takes at most {limit}")
        if self.request_bytes < self.record_bytes:
            raise ConfigError(
                f"request_bytes={self.request_bytes} is less than record_bytes={self.record_bytes}: a request holds "
                "at least one record"
            )
        if self.aggregate_bytes and not self.ordered:
            raise ConfigError(
                "ordered=False is for plain records: leave it out, or set aggregate_bytes=0"
            )
