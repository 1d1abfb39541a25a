"""Settings of the transaction coordinator, under Kafka's names."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Self


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionConfig:
    """Settings of the coordinator. Attributes are Kafka's broker properties, with underscores for the dots."""

    transaction_max_timeout_ms: int = 900_000
    """The longest `transaction.timeout.ms` that a producer may request."""

    transactional_id_expiration_ms: int = 604_800_000
    """The time after the last use of a transactional id at which the coordinator deletes it; never during a
    transaction."""

    transaction_remove_expired_transaction_cleanup_interval_ms: int = 3_600_000
    """The interval at which the coordinator looks for expired ids."""

    max_transactional_ids: int = 100_000
    """The largest number of ids in a partition; InitProducerId with one more is refused. Kafka has no such limit."""

    offsets_commit_timeout_ms: int = 5_000
    """The longest time that a response waits for the high watermark; after it the response is an error."""

    concurrent_transactions_wait_ms: int = 100
    """The longest time that a transaction's first request waits for the completion of the previous transaction."""

    marker_retry_ms: int = 100
    """The pause before the first retry of a marker that could not be written; it doubles with every further retry."""

    marker_retry_max_ms: int = 10_000
    """The longest pause before a retry of a marker."""

    @classmethod
    def from_broker(cls, config: object) -> Self:
        """Return the settings that `config` has as attributes, and defaults for the others."""
        names = [field.name for field in fields(cls)]
        return cls(**{name: getattr(config, name) for name in names if hasattr(config, name)})
