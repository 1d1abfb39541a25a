"""The settings of a producer, and the limits of Kinesis."""

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
    """Settings of batches, retries and limits of a producer.

    Attributes:
        linger_ms: The time for which a record waits for others to fill a request, in milliseconds.
        record_bytes: The largest record in bytes, partition key included. Above 1 MiB only for streams with a larger
            MaxRecordSize (UpdateMaxRecordSize, at most 10 MiB).
        request_bytes: The largest request in bytes. AWS accepts 10 MiB, other servers and older endpoints 5 MiB.
        request_records: The most records in a request.
        aggregate_bytes: The size of aggregates in the format of the Kinesis Producer Library. 0: each record is sent as
            a record of its own.
        ordered: Whether records of one partition key stay in the order of `send`. Without aggregates this costs speed:
            one record of each key is in flight at a time.
        max_in_flight: The most requests of a stream in flight at a time.
        delivery_timeout_ms: The time after which a record is given up, in milliseconds.
        buffer_bytes: The most bytes of pending records. `send` waits for space.
        backoff_ms: The longest first pause after a failure, in milliseconds. It doubles with each failure.
        backoff_max_ms: The longest pause, in milliseconds.
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
        """Check the settings against the limits of Kinesis.

        Raises:
            ConfigError: A setting is outside its limits, or contradicts another.
        """
        for field in fields(self):
            least = 0 if field.name in {"linger_ms", "aggregate_bytes", "ordered"} else 1
            if getattr(self, field.name) < least:
                raise ConfigError(
                    f"{field.name}={getattr(self, field.name)} is not allowed: use {least} or more"
                )
        limits = {
            "record_bytes": MAX_RECORD_BYTES,
            "request_bytes": MAX_REQUEST_BYTES,
            "request_records": MAX_RECORDS,
            "aggregate_bytes": self.record_bytes,
        }
        for name, limit in limits.items():
            if getattr(self, name) > limit:
                raise ConfigError(
                    f"{name}={getattr(self, name)} is not allowed: Kinesis accepts at most {limit}"
                )
        if self.request_bytes < self.record_bytes:
            raise ConfigError(
                f"request_bytes={self.request_bytes} is less than record_bytes={self.record_bytes}: a request contains "
                "at least one record. Raise request_bytes"
            )
        if self.aggregate_bytes and not self.ordered:
            raise ConfigError(
                "ordered=False is for records without aggregation: leave it out, or set aggregate_bytes=0"
            )
