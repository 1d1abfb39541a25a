"""The configurations of partition logs and schedules, derived from the settings of topic and broker."""

from __future__ import annotations

from typing import Final

from headrace.config.broker import BrokerConfig
from headrace.config.topic import TopicConfig
from headrace.core.log import LogConfig
from headrace.records.batch import TimestampType
from headrace.records.compression import Compression
from headrace.records.recompression import Target
from headrace.types import MAX_INT64

SCHEDULE_SEGMENT_BYTES: Final = 64 << 20


def target_of(config: TopicConfig) -> Target | None:
    """Return the compression of a topic's batches; None to keep the compression of the producers."""
    return Target.of(
        config.compression_type,
        gzip_level=config.compression_gzip_level,
        lz4_level=config.compression_lz4_level,
        zstd_level=config.compression_zstd_level,
    )


def log_config(config: TopicConfig, broker_config: BrokerConfig) -> LogConfig:
    """Derive the configuration of a topic's logs."""
    policy = config.cleanup_policy.split(",")
    deletes, compacts = "delete" in policy, config.compacts
    segment_ms, target = config.segment_ms, target_of(config)
    if compacts:  # only sealed segments are compacted
        segment_ms = min(segment_ms, config.max_compaction_lag_ms)
    return LogConfig(
        segment_bytes=config.segment_bytes,
        segment_ms=segment_ms,
        retention_ms=config.retention_ms if deletes else -1,
        retention_bytes=config.retention_bytes if deletes else -1,
        max_message_bytes=config.max_message_bytes,
        message_timestamp_type=TimestampType.LOG_APPEND_TIME
        if config.message_timestamp_type == "LogAppendTime"
        else TimestampType.CREATE_TIME,
        message_timestamp_before_max_ms=config.message_timestamp_before_max_ms,
        message_timestamp_after_max_ms=config.message_timestamp_after_max_ms,
        index_interval_bytes=config.index_interval_bytes,
        producer_id_expiration_ms=broker_config.producer_id_expiration_ms,
        compacts=compacts,
        min_cleanable_dirty_ratio=config.min_cleanable_dirty_ratio,
        min_compaction_lag_ms=config.min_compaction_lag_ms,
        max_compaction_lag_ms=config.max_compaction_lag_ms,
        delete_retention_ms=config.delete_retention_ms,
        expires=config.headrace_ttl_enable and not compacts,
        filters=config.headrace_filter_enable,
        codec=Compression.NONE if target is None else target.codec,
    )


def schedule_config(broker_config: BrokerConfig) -> LogConfig:
    """Derive the configuration of a schedule's log. Its records are not deleted by age or size."""
    return LogConfig(
        segment_bytes=SCHEDULE_SEGMENT_BYTES,
        segment_ms=MAX_INT64,
        retention_ms=-1,
        # The schedule recognises retries for as long as the partition, in which the producer may have written since.
        producer_id_expiration_ms=2 * broker_config.producer_id_expiration_ms,
    )
