"""Settings of the transaction coordinator, under Kafka's names."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Self


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionConfig:
    """Limits and times. Attributes are Kafka's broker properties with dots as underscores."""

    transaction_max_timeout_ms: int = 900_000
    """Longest transaction.timeout.ms that a producer may ask for."""

    transactional_id_expiration_ms: int = 604_800_000
    """How long an id without a transaction is remembered after its last use."""

    transaction_remove_expired_transaction_cleanup_interval_ms: int = 3_600_000
    """How often expired ids are looked for."""

    max_transactional_ids: int = 100_000
    """How many ids a partition remembers; producers with further ones are refused. Kafka has no such limit."""

    offsets_commit_timeout_ms: int = 5_000
    """How long a response waits for the high watermark before it is answered with an error."""

    concurrent_transactions_wait_ms: int = 100
    """How long the first request of a transaction waits for the completion of the one before."""

    marker_retry_ms: int = 100
    """How long after a marker could not be written it is tried again; twice as long after every further time."""

    marker_retry_max_ms: int = 10_000
    """The longest of these times."""

    @classmethod
    def from_broker(cls, config: object) -> Self:
        """Take every setting that `config` has an attribute for; the rest keep their defaults."""
        names = [field.name for field in fields(cls)]
        return cls(**{name: getattr(config, name) for name in names if hasattr(config, name)})
