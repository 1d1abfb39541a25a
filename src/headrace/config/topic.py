"""A topic's configuration, under Kafka's names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Final

from headrace.config.durability import sync_interval_ms
from headrace.config.options import (
    LONG_MAX,
    Option,
    OptionType,
    Value,
    option,
    options_of,
    parse,
)
from headrace.errors import ConfigError
from headrace.registers import PARAMETERS_LIMIT, check_name, parse_parameters

if TYPE_CHECKING:
    from headrace.config.broker import BrokerConfig

LONGEST_DELAY_MS: Final = 253_402_300_799_999
"""No due time lies beyond the year 9999."""


def _check_strategy(name: str) -> None:
    """Check a name, of which nothing else is known here; empty means none."""
    if name:
        check_name(name)


def _check_gzip_level(text: str) -> None:
    if text.strip() == "0":
        raise ConfigError("expected -1, or 1 to 9, got 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicConfig:
    """The effective configuration of one topic: its own settings over the broker's defaults."""

    cleanup_policy: str = option(
        "delete",
        "What happens to old segments: 'delete' by retention, 'compact' to keep the last record of a key, or both. "
        "With 'compact' every record needs a key.",
        type=OptionType.LIST,
        choices=("delete", "compact"),
        broker_name="log.cleanup.policy",
    )
    compression_gzip_level: int = option(
        -1,
        "The level at which the broker compresses batches of a topic with compression.type=gzip: 1 to 9, or -1 for the "
        "default of gzip, 6.",
        type=OptionType.INT,
        minimum=-1,
        maximum=9,
        check=_check_gzip_level,
        broker_name="compression.gzip.level",
    )
    compression_lz4_level: int = option(
        9,
        "The level at which the broker compresses batches of a topic with compression.type=lz4: 1 to 17. As in Kafka, "
        "9 is the fast compressor; other levels compress better, and take four to ten times as long.",
        type=OptionType.INT,
        minimum=1,
        maximum=17,
        broker_name="compression.lz4.level",
    )
    compression_type: str = option(
        "producer",
        "How batches are compressed on disk: 'producer' keeps what the producer chose, 'uncompressed' and the names of "
        "codecs have the broker compress each batch that comes with another codec. A change counts for later batches.",
        choices=("uncompressed", "gzip", "snappy", "lz4", "zstd", "producer"),
        broker_name="compression.type",
    )
    compression_zstd_level: int = option(
        3,
        "The level at which the broker compresses batches of a topic with compression.type=zstd: -131072 to 22. Levels "
        "above 19 take a second for a few megabytes, and hundreds of megabytes of memory.",
        type=OptionType.INT,
        minimum=-131_072,
        maximum=22,
        broker_name="compression.zstd.level",
    )
    delete_retention_ms: int = option(
        86_400_000,
        "How long a compacted topic keeps a record that deletes a key, once compaction has found it.",
        minimum=0,
        broker_name="log.cleaner.delete.retention.ms",
    )
    file_delete_delay_ms: int = option(
        60_000,
        "How long Kafka waits before it removes a deleted file.",
        minimum=0,
        broker_name="log.segment.delete.delay.ms",
        stored_only="files are removed at once, readers keep them open",
    )
    flush_messages: int = option(
        LONG_MAX,
        "With 1 every batch is synced before it is acknowledged, as with headrace.durability=fsync. Larger numbers are "
        "accepted and have no effect.",
        minimum=1,
        broker_name="log.flush.interval.messages",
    )
    flush_ms: int = option(
        LONG_MAX,
        "After how many milliseconds at most a partition is synced, if headrace.durability does not do so earlier.",
        minimum=0,
        broker_name="log.flush.interval.ms",
    )
    headrace_delay_enable: bool = option(
        default=False,
        documentation="Whether records can be delayed: a header headrace.deliver-at-ms or headrace.delay-ms says when "
        "a record is appended to its partition. Not on compacted topics. Headrace's own option.",
        broker_name="headrace.delay.enable",
    )
    headrace_delay_max_ms: int = option(
        31_622_400_000,
        "The longest delay of a record that is accepted, 366 days unless set. Headrace's own option.",
        minimum=0,
        maximum=LONGEST_DELAY_MS,
        broker_name="headrace.delay.max.ms",
    )
    headrace_durability: str = option(
        "fsync",
        "What an acknowledgement means: 'fsync', the batch is on stable storage (many batches share one sync); "
        "'interval:<ms>', it is in the page cache and will be synced within that time, which is what a power cut may "
        "take; or 'os', it is in the page cache, survives the process and not a power cut. The broker's own topics are "
        "always synced. Headrace's own option.",
        broker_name="durability",
        check=sync_interval_ms,
    )
    headrace_filter_enable: bool = option(
        default=False,
        documentation="Whether the broker filters records by their tags (headers headrace.tag) for Headrace's "
        "consumers that ask for it; with false they do so themselves. Headrace's own option.",
        broker_name="headrace.filter.enable",
    )
    headrace_key_serde: str = option(
        "",
        "The name of the serde by which Headrace's clients read and write keys, unless they are told otherwise; bytes "
        "if it is empty. Other clients do not know it. Headrace's own option.",
        broker_name="headrace.key.serde",
        check=_check_strategy,
    )
    headrace_key_serde_parameters: str = option(
        "",
        "What the serde of headrace.key.serde is made with, as headrace.serde.parameters. Headrace's own option.",
        check=parse_parameters,
        text_limit=PARAMETERS_LIMIT,
    )
    headrace_partitioner: str = option(
        "",
        "The name of the partitioner of Headrace's producers, unless they are told otherwise: key_hash (if it is "
        "empty), round_robin, sticky, random, or one that the program has registered or an installed package offers. "
        "Headrace's own option.",
        broker_name="headrace.partitioner",
        check=_check_strategy,
    )
    headrace_partitioner_parameters: str = option(
        "",
        "What the partitioner of headrace.partitioner is made with: a JSON object, whose members are the keyword "
        'arguments of its class, such as {"modulus": 3}. Headrace\'s own option.',
        check=parse_parameters,
        text_limit=PARAMETERS_LIMIT,
    )
    headrace_serde: str = option(
        "",
        "The name of the serde by which Headrace's clients read and write values, as headrace.key.serde for keys. "
        "Headrace's own option.",
        broker_name="headrace.serde",
        check=_check_strategy,
    )
    headrace_serde_parameters: str = option(
        "",
        "What the serde of headrace.serde is made with: a JSON object, whose members are the keyword arguments of its "
        'class, such as {"schema": ...} for avro. Headrace\'s own option.',
        check=parse_parameters,
        text_limit=PARAMETERS_LIMIT,
    )
    headrace_storage: str = option(
        "",
        "Where a topic's records are kept, by name, chosen when it is created: 'files' (segments in the broker's "
        "directories; what is meant if it is empty, unless the broker is in memory), 'linked' or 'array' (in memory, "
        "and gone when the broker ends), or one that the process has registered. Headrace's own option.",
        broker_name="headrace.storage",
    )
    headrace_ttl_enable: bool = option(
        default=False,
        documentation="Whether records expire: a header headrace.ttl-ms says how long after its timestamp a record "
        "is neither delivered nor kept. Not on compacted topics. Headrace's own option.",
        broker_name="headrace.ttl.enable",
    )
    index_interval_bytes: int = option(
        4096,
        "How many bytes of a segment lie between two entries of its offset index.",
        type=OptionType.INT,
        minimum=1,
        broker_name="log.index.interval.bytes",
    )
    max_compaction_lag_ms: int = option(
        LONG_MAX,
        "Longest time a record stays uncompacted; it also bounds the age of a segment that is still written to.",
        minimum=1,
        broker_name="log.cleaner.max.compaction.lag.ms",
    )
    max_message_bytes: int = option(
        1_048_588,
        "Largest record batch that is accepted, as it is on the wire.",
        type=OptionType.INT,
        minimum=0,
        broker_name="message.max.bytes",
    )
    message_timestamp_after_max_ms: int = option(
        3_600_000,
        "How far a record's timestamp may lie in the future; only with CreateTime.",
        minimum=0,
        broker_name="log.message.timestamp.after.max.ms",
    )
    message_timestamp_before_max_ms: int = option(
        LONG_MAX,
        "How far a record's timestamp may lie in the past; only with CreateTime.",
        minimum=0,
        broker_name="log.message.timestamp.before.max.ms",
    )
    message_timestamp_type: str = option(
        "CreateTime",
        "Whose clock stamps records: the producer's (CreateTime) or the broker's (LogAppendTime).",
        choices=("CreateTime", "LogAppendTime"),
        broker_name="log.message.timestamp.type",
    )
    min_cleanable_dirty_ratio: float = option(
        0.5,
        "Which share of a compacted log must be uncompacted before the cleaner works on it.",
        minimum=0,
        maximum=1,
        broker_name="log.cleaner.min.cleanable.ratio",
    )
    min_compaction_lag_ms: int = option(
        0,
        "Shortest time a record stays uncompacted.",
        minimum=0,
        broker_name="log.cleaner.min.compaction.lag.ms",
    )
    min_insync_replicas: int = option(
        1,
        "How many replicas must have a batch before acks=all is answered with success; of the one that there is, one.",
        type=OptionType.INT,
        minimum=1,
        broker_name="min.insync.replicas",
    )
    preallocate: bool = option(
        default=False,
        documentation="Whether a new segment file is allocated at its full size.",
        broker_name="log.preallocate",
        stored_only="segments grow as they are written",
    )
    retention_bytes: int = option(
        -1,
        "Up to how many bytes a partition keeps; -1 means no limit.",
        minimum=-1,
        broker_name="log.retention.bytes",
    )
    retention_ms: int = option(
        1_209_600_000,
        "How long records are kept; -1 means for ever. The default is two weeks.",
        minimum=-1,
        broker_name="log.retention.ms",
    )
    segment_bytes: int = option(
        1_073_741_824,
        "Size at which a new segment file is started.",
        type=OptionType.INT,
        minimum=14,
        broker_name="log.segment.bytes",
    )
    segment_index_bytes: int = option(
        10_485_760,
        "Largest size of an index file.",
        type=OptionType.INT,
        minimum=4,
        broker_name="log.index.size.max.bytes",
        stored_only="indexes are small and grow with their segment",
    )
    segment_jitter_ms: int = option(
        0,
        "Random time taken off segment.ms.",
        minimum=0,
        broker_name="log.roll.jitter.ms",
        stored_only="segments roll at segment.ms",
    )
    segment_ms: int = option(
        604_800_000,
        "Age at which a new segment file is started.",
        minimum=1,
        broker_name="log.roll.ms",
    )
    unclean_leader_election_enable: bool = option(
        default=False,
        documentation="Whether a replica that lags may become leader.",
        broker_name="unclean.leader.election.enable",
        stored_only="a partition has one replica",
    )

    @property
    def compacts(self) -> bool:
        """Whether the last record of each key is kept."""
        return "compact" in self.cleanup_policy.split(",")

    @property
    def max_delay_ms(self) -> int | None:
        """How long records may be delayed; None if they cannot be."""
        enabled = self.headrace_delay_enable and not self.compacts
        return self.headrace_delay_max_ms if enabled else None

    @property
    def sync_interval_ms(self) -> int | None:
        """After how many milliseconds records are synced: 0 before they are acknowledged, None at no promised time."""
        wanted = [sync_interval_ms(self.headrace_durability)]
        if self.flush_messages == 1:
            wanted.append(0)
        if self.flush_ms < LONG_MAX:
            wanted.append(self.flush_ms)
        return min((interval for interval in wanted if interval is not None), default=None)


TOPIC_OPTIONS: Final[Mapping[str, Option]] = options_of(TopicConfig)


_TIERED: Final = "there is no tiered storage"
_THROTTLED: Final = "a partition has one replica"
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
"""Topic options that Kafka has or had and Headrace has not, with the reason."""


def topic_defaults(broker_config: BrokerConfig) -> dict[str, Value]:
    """Return what a topic without settings of its own inherits from the broker, by attribute."""
    defaults: dict[str, Value] = {}
    for described in fields(TopicConfig):
        broker_name = described.metadata["option"].broker_name
        if broker_name is not None:
            defaults[described.name] = getattr(broker_config, broker_name.replace(".", "_"))
    return defaults


def parse_topic_config(
    overrides: Mapping[str, str | None], broker_config: BrokerConfig
) -> TopicConfig:
    """Return a topic's effective configuration: its overrides over the broker's defaults.

    Raises:
        ConfigError: A key is unknown, or a value out of bounds or not supported.
    """
    for name in overrides:
        if name in UNSUPPORTED_TOPIC_OPTIONS:
            raise ConfigError(f"{name}: not supported: {UNSUPPORTED_TOPIC_OPTIONS[name]}")
    config = parse(TopicConfig, overrides, defaults=topic_defaults(broker_config))
    if config.min_compaction_lag_ms > config.max_compaction_lag_ms:
        raise ConfigError("min.compaction.lag.ms must not be larger than max.compaction.lag.ms")
    if config.headrace_delay_enable and "headrace.delay.enable" in overrides and config.compacts:
        # What is appended instead of a delayed record has no key.
        raise ConfigError("headrace.delay.enable needs cleanup.policy=delete")
    if config.headrace_ttl_enable and "headrace.ttl.enable" in overrides and config.compacts:
        # A record that expires would bring the one before it to life again.
        raise ConfigError("headrace.ttl.enable needs cleanup.policy=delete")
    return config
