"""The settings of a topic that its partition logs use."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.records.batch import TimestampType
from headrace.records.compression import Compression
from headrace.types import MAX_INT64


@dataclass(frozen=True, slots=True)
class LogConfig:
    """Settings of one log. The names are Kafka's topic configs with underscores, the defaults are Kafka's.

    Attributes:
        segment_bytes: Size in bytes at which a segment is sealed and the next one begins.
        segment_ms: Age at which a segment is sealed, measured in record timestamps as in Kafka.
        retention_ms: Age at which records may be deleted; -1 keeps them for ever.
        retention_bytes: Size of the log above which the oldest segments are deleted; -1 for no limit.
        max_message_bytes: Size of the largest batch that is accepted.
        message_timestamp_type: Whether timestamps are the producer's, or the time of the append.
        message_timestamp_before_max_ms: How far the producer's timestamps may lie in the past.
        message_timestamp_after_max_ms: How far the producer's timestamps may lie in the future.
        index_interval_bytes: Bytes of the segment between two index entries.
        producer_id_expiration_ms: Idle time after which the state of a producer is forgotten.
        max_producer_ids: Most producers whose state is kept. Beyond it the longest idle ones are forgotten.
        compacts: Whether the log is compacted (`cleanup.policy`). Then every record needs a key.
        min_cleanable_dirty_ratio: The least share of dirty bytes for which the log is compacted.
        min_compaction_lag_ms: Age below which records are not compacted.
        max_compaction_lag_ms: Age at which records are compacted, whatever the share of dirty bytes.
        delete_retention_ms: How long a tombstone stays after the first round of compaction that found it.
        expires: Whether records have a time to live (`headrace.ttl.enable`). Never together with `compacts`.
        codec: The codec of data batches that the broker builds, for example of scheduled records. Produced batches keep
            their codec, also when cleaning removes records from them.
        filters: Whether consumers may ask for records with certain tags (`headrace.filter.enable`).
    """

    segment_bytes: int = 1 << 30
    segment_ms: int = 7 * 24 * 3600 * 1000
    retention_ms: int = 7 * 24 * 3600 * 1000
    retention_bytes: int = -1
    max_message_bytes: int = 1_048_588
    message_timestamp_type: TimestampType = TimestampType.CREATE_TIME
    message_timestamp_before_max_ms: int = MAX_INT64
    message_timestamp_after_max_ms: int = 3600 * 1000
    index_interval_bytes: int = 4096
    producer_id_expiration_ms: int = 24 * 3600 * 1000
    max_producer_ids: int = 20_000
    compacts: bool = False
    min_cleanable_dirty_ratio: float = 0.5
    min_compaction_lag_ms: int = 0
    max_compaction_lag_ms: int = MAX_INT64
    delete_retention_ms: int = 24 * 3600 * 1000
    expires: bool = False
    filters: bool = False
    codec: Compression = Compression.NONE
