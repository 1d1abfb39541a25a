"""A topic's configuration, under Kafka's names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from headrace.config.durability import sync_interval_ms
from headrace.config.options import (
    LONG_MAX,
    Option,
    OptionType,
    option,
    options_of,
)
from headrace.errors import ConfigError
from headrace.registers import PARAMETERS_LIMIT, check_name, parse_parameters

LONGEST_DELAY_MS: Final = 253_402_300_799_999
"""The end of the year 9999, in milliseconds since 1970. No delivery time is later."""


def _check_strategy(name: str) -> None:
    """Check the form of a name of a serde, a partitioner or a storage. An empty name means none."""
    if name:
        check_name(name)


def _check_gzip_level(text: str) -> None:
    if text.strip() == "0":
        raise ConfigError("expected -1, or 1 to 9, got 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicConfig:
    """The effective configuration of one topic: its own settings, and the broker's defaults."""

    cleanup_policy: str = option(
        "delete",
        "What happens to old segments: 'delete' removes them by retention, 'compact' keeps the last record "
        "of each key, 'compact,delete' does both. With 'compact' every record needs a key.",
        type=OptionType.LIST,
        choices=("delete", "compact"),
        broker_name="log.cleanup.policy",
    )
    compression_gzip_level: int = option(
        -1,
        "The level with which the broker compresses batches of a topic with compression.type=gzip. -1 is "
        "the default of gzip, 6; 0 is not allowed.",
        type=OptionType.INT,
        minimum=-1,
        maximum=9,
        check=_check_gzip_level,
        broker_name="compression.gzip.level",
    )
    compression_lz4_level: int = option(
        9,
        "The level with which the broker compresses batches of a topic with compression.type=lz4. As in "
        "Kafka, 9 is the fast compressor. Other levels compress better, and take four to ten times as long.",
        type=OptionType.INT,
        minimum=1,
        maximum=17,
        broker_name="compression.lz4.level",
    )
    compression_type: str = option(
        "producer",
        "How batches are compressed on disk. 'producer' keeps what the producer sent. With 'uncompressed' "
        "or the name of a codec, the broker compresses each batch that has another codec. A change applies "
        "to later batches.",
        choices=("uncompressed", "gzip", "snappy", "lz4", "zstd", "producer"),
        broker_name="compression.type",
    )
    compression_zstd_level: int = option(
        3,
        "The level with which the broker compresses batches of a topic with compression.type=zstd. Levels "
        "above 19 take a second for a few megabytes, and hundreds of megabytes of memory.",
        type=OptionType.INT,
        minimum=-131_072,
        maximum=22,
        broker_name="compression.zstd.level",
    )
    delete_retention_ms: int = option(
        86_400_000,
        "The time for which a compacted topic keeps a record without a value, which deletes its key, after "
        "compaction has found it.",
        minimum=0,
        broker_name="log.cleaner.delete.retention.ms",
    )
    file_delete_delay_ms: int = option(
        60_000,
        "The time that Kafka waits before it removes a deleted file.",
        minimum=0,
        broker_name="log.segment.delete.delay.ms",
        stored_only="files are removed at once, readers keep them open",
    )
    flush_messages: int = option(
        LONG_MAX,
        "With 1 each batch is synced before it is acknowledged, as with headrace.durability=fsync. Larger "
        "numbers have no effect.",
        minimum=1,
        broker_name="log.flush.interval.messages",
    )
    flush_ms: int = option(
        LONG_MAX,
        "The longest time until a partition is synced, if headrace.durability does not sync it earlier.",
        minimum=0,
        broker_name="log.flush.interval.ms",
    )
    headrace_acks: int = option(
        1,
        "The number of in-sync replicas, the leader included, that have a record before it is acknowledged, whatever "
        "fewer acks a producer asks for. With fewer in-sync replicas the broker refuses all records, also those with "
        "acks=all. At most the number of replicas of the topic.",
        type=OptionType.INT,
        minimum=1,
    )
    headrace_delay_enable: bool = option(
        default=False,
        documentation="Whether producers can delay records: the header headrace.deliver-at-ms or "
        "headrace.delay-ms says when the record is appended to its partition. Not for compacted "
        "topics.",
        broker_name="headrace.delay.enable",
    )
    headrace_delay_max_ms: int = option(
        31_622_400_000,
        "The longest delay of a record that the broker accepts.",
        minimum=0,
        maximum=LONGEST_DELAY_MS,
        broker_name="headrace.delay.max.ms",
    )
    headrace_durability: str = option(
        "fsync",
        "What an acknowledgement means. 'fsync': the batch is on stable storage; many batches share one "
        "sync. 'interval:<ms>': the batch is in the page cache and will be synced within that time; a power "
        "cut can lose it before. 'os': the batch is in the page cache; it survives the end of the process, "
        "but a power cut can lose it. Internal topics are always synced.",
        broker_name="durability",
        check=sync_interval_ms,
    )
    headrace_filter_enable: bool = option(
        default=False,
        documentation="Whether the broker filters records by their tags (headers headrace.tag) for consumers of "
        "Headrace that ask for it. With false these consumers filter the records themselves.",
        broker_name="headrace.filter.enable",
    )
    headrace_key_serde: str = option(
        "",
        "The name of the serde with which Headrace's clients read and write keys, unless the client names "
        "another one. Empty: bytes. Other clients ignore this setting.",
        broker_name="headrace.key.serde",
        check=_check_strategy,
    )
    headrace_key_serde_parameters: str = option(
        "",
        "The parameters of headrace.key.serde, in the form of headrace.serde.parameters.",
        check=parse_parameters,
        text_limit=PARAMETERS_LIMIT,
    )
    headrace_partitioner: str = option(
        "",
        "The name of the partitioner of Headrace's producers, unless the producer names another one: "
        "key_hash (also if empty), round_robin, sticky, random, or a name that the program or an installed "
        "package has registered.",
        broker_name="headrace.partitioner",
        check=_check_strategy,
    )
    headrace_partitioner_parameters: str = option(
        "",
        "The parameters of headrace.partitioner: a JSON object with the keyword arguments of its class, "
        'such as {"modulus": 3}.',
        check=parse_parameters,
        text_limit=PARAMETERS_LIMIT,
    )
    headrace_serde: str = option(
        "",
        "The name of the serde with which Headrace's clients read and write values, unless the client names "
        "another one. Empty: bytes. Other clients ignore this setting.",
        broker_name="headrace.serde",
        check=_check_strategy,
    )
    headrace_serde_parameters: str = option(
        "",
        "The parameters of headrace.serde: a JSON object with the keyword arguments of its class, such as "
        '{"schema": ...} for avro.',
        check=parse_parameters,
        text_limit=PARAMETERS_LIMIT,
    )
    headrace_storage: str = option(
        "",
        "Where the records of the topic are kept. It is chosen when the topic is created and cannot change. "
        "'files': segments in the data directories, the default of a broker with data directories. 'linked' "
        "or 'array': in memory, until the broker stops. Or a name that the program has registered.",
        broker_name="headrace.storage",
    )
    headrace_ttl_enable: bool = option(
        default=False,
        documentation="Whether records expire: the header headrace.ttl-ms says how long after its timestamp a "
        "record is delivered and kept. Not for compacted topics.",
        broker_name="headrace.ttl.enable",
    )
    index_interval_bytes: int = option(
        4096,
        "The number of bytes of a segment between two entries of its offset index.",
        type=OptionType.INT,
        minimum=1,
        broker_name="log.index.interval.bytes",
    )
    max_compaction_lag_ms: int = option(
        LONG_MAX,
        "The longest time until a record is compacted. It also bounds the age of the active segment.",
        minimum=1,
        broker_name="log.cleaner.max.compaction.lag.ms",
    )
    max_message_bytes: int = option(
        1_048_588,
        "The largest record batch that the broker accepts, compressed as the producer sent it.",
        type=OptionType.INT,
        minimum=0,
        broker_name="message.max.bytes",
    )
    message_timestamp_after_max_ms: int = option(
        3_600_000,
        "How far the timestamp of a record can be in the future. Only with "
        "message.timestamp.type=CreateTime.",
        minimum=0,
        broker_name="log.message.timestamp.after.max.ms",
    )
    message_timestamp_before_max_ms: int = option(
        LONG_MAX,
        "How far the timestamp of a record can be in the past. Only with message.timestamp.type=CreateTime.",
        minimum=0,
        broker_name="log.message.timestamp.before.max.ms",
    )
    message_timestamp_type: str = option(
        "CreateTime",
        "Whose clock sets the timestamp of records: the producer's (CreateTime) or the broker's "
        "(LogAppendTime).",
        choices=("CreateTime", "LogAppendTime"),
        broker_name="log.message.timestamp.type",
    )
    min_cleanable_dirty_ratio: float = option(
        0.5,
        "The share of a compacted log that must be uncompacted before the cleaner compacts it.",
        minimum=0,
        maximum=1,
        broker_name="log.cleaner.min.cleanable.ratio",
    )
    min_compaction_lag_ms: int = option(
        0,
        "The shortest time until a record is compacted.",
        minimum=0,
        broker_name="log.cleaner.min.compaction.lag.ms",
    )
    min_insync_replicas: int = option(
        1,
        "The number of in-sync replicas without which the broker refuses acks=all. A partition never needs more "
        "in-sync replicas than it has replicas.",
        type=OptionType.INT,
        minimum=1,
        broker_name="min.insync.replicas",
    )
    preallocate: bool = option(
        default=False,
        documentation="Whether a new segment file is allocated with its full size.",
        broker_name="log.preallocate",
        stored_only="segments grow as they are written",
    )
    retention_bytes: int = option(
        -1,
        "The size up to which a partition keeps records. Older segments are deleted. -1: no limit.",
        minimum=-1,
        broker_name="log.retention.bytes",
    )
    retention_ms: int = option(
        1_209_600_000,
        "The time for which records are kept. -1: forever.",
        minimum=-1,
        broker_name="log.retention.ms",
    )
    segment_bytes: int = option(
        1_073_741_824,
        "The size at which a new segment file is started.",
        type=OptionType.INT,
        minimum=14,
        broker_name="log.segment.bytes",
    )
    segment_index_bytes: int = option(
        10_485_760,
        "The largest size of an index file.",
        type=OptionType.INT,
        minimum=4,
        broker_name="log.index.size.max.bytes",
        stored_only="indexes are small and grow with their segment",
    )
    segment_jitter_ms: int = option(
        0,
        "A random time that is subtracted from segment.ms.",
        minimum=0,
        broker_name="log.roll.jitter.ms",
        stored_only="segments roll at segment.ms",
    )
    segment_ms: int = option(
        604_800_000,
        "The age at which a new segment file is started.",
        minimum=1,
        broker_name="log.roll.ms",
    )
    unclean_leader_election_enable: bool = option(
        default=False,
        documentation="Whether a replica that is not in sync becomes the leader if no other can. Committed records may "
        "be lost.",
        broker_name="unclean.leader.election.enable",
    )

    @property
    def compacts(self) -> bool:
        """Whether the topic keeps the last record of each key."""
        return "compact" in self.cleanup_policy.split(",")

    @property
    def max_delay_ms(self) -> int | None:
        """The longest delay of a scheduled record in milliseconds; None if the topic schedules no records."""
        enabled = self.headrace_delay_enable and not self.compacts
        return self.headrace_delay_max_ms if enabled else None

    @property
    def sync_interval_ms(self) -> int | None:
        """The time until records are synced, in milliseconds.

        0 for a sync before the acknowledgement, None for no promise.
        """
        wanted = [sync_interval_ms(self.headrace_durability)]
        if self.flush_messages == 1:
            wanted.append(0)
        if self.flush_ms < LONG_MAX:
            wanted.append(self.flush_ms)
        return min((interval for interval in wanted if interval is not None), default=None)


TOPIC_OPTIONS: Final[Mapping[str, Option]] = options_of(TopicConfig)


_TIERED: Final = "there is no tiered storage"
_THROTTLED: Final = "replication is not throttled"
_OLD_FORMATS: Final = "there is one message format, version 2"
UNSUPPORTED_TOPIC_OPTIONS: Final[Mapping[str, str]] = {
    "follower.replication.throttled.replicas": _THROTTLED,
    "leader.replication.throttled.replicas": _THROTTLED,
    "local.retention.bytes": _TIERED,
    "local.retention.ms": _TIERED,
    "message.downconversion.enable": _OLD_FORMATS,
    "message.format.version": _OLD_FORMATS,
    "message.timestamp.difference.max.ms": "use message.timestamp.before.max.ms and .after.max.ms",
    "remote.log.copy.disable": _TIERED,
    "remote.log.delete.on.disable": _TIERED,
    "remote.storage.enable": _TIERED,
}
"""The topic options of Kafka that Headrace does not support, each with the reason."""
