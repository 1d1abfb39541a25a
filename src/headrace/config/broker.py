"""A broker's configuration, under Kafka's names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from headrace.config.coordinators import CoordinatorConfig
from headrace.config.durability import sync_interval_ms
from headrace.config.foreign import accepted_reason, refusal, refused_option
from headrace.config.listeners import parse_advertised, parse_protocol_map
from headrace.config.options import (
    Option,
    OptionType,
    option,
    options_of,
    parse,
    parse_value,
    unknown_key,
)
from headrace.config.security import split_overrides
from headrace.config.topic import TOPIC_OPTIONS, TopicConfig
from headrace.errors import ConfigError, InvalidRequestError

_INT = OptionType.INT
_DEFAULT_TOPIC: Final = TopicConfig()


def _default_of(topic_option: str) -> Any:
    """Declare the broker option with the default of a topic option."""
    described = TOPIC_OPTIONS[topic_option]
    return field(
        default=getattr(_DEFAULT_TOPIC, topic_option.replace(".", "_")),
        metadata={
            "option": replace(
                described,
                documentation=f"Default of {topic_option} for topics. {described.documentation}",
                broker_name=None,
                dynamic=True,
            )
        },
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerConfig(CoordinatorConfig):
    """The settings of a broker. A change of a `dynamic` option while the broker runs gives the broker a new object."""

    advertised_listeners: str = option(
        "",
        "The addresses that the broker returns to clients: NAME://host:port, one for each listener, separated "
        "by commas. Clients of a listener without an entry get the address to which they connected. This is "
        "right on one node, unless a proxy or a port mapping lies between.",
    )
    auto_create_topics_enable: bool = option(
        default=True,
        documentation="Whether a client that asks for the metadata of a topic creates the topic if it does not "
        "exist.",
    )
    broker_id: int = option(
        1,
        "The number of this broker. `node.id` is another name of this option.",
        type=_INT,
        minimum=0,
    )
    broker_rack: str = option(
        "",
        "The rack of this broker, such as an availability zone. The replicas of a partition are placed in "
        "different racks, while there are enough racks. Without a name the broker is in a rack of its own.",
    )
    compression_gzip_level: int = _default_of("compression.gzip.level")
    compression_lz4_level: int = _default_of("compression.lz4.level")
    compression_type: str = _default_of("compression.type")
    compression_zstd_level: int = _default_of("compression.zstd.level")
    connections_max_idle_ms: int = option(
        600_000,
        "The time without requests after which the broker closes a connection.",
        minimum=1,
    )
    default_replication_factor: int = option(
        1,
        "The number of replicas of each partition of a topic that is created without a number. A topic that a "
        "client creates by asking for its metadata has fewer replicas if there are fewer live brokers.",
        type=_INT,
        minimum=1,
    )
    delete_topic_enable: bool = option(
        default=True, documentation="Whether clients can delete topics."
    )
    durability: str = option(
        "fsync",
        "The default of headrace.durability for topics: what an acknowledgement means. With 'fsync' the "
        "batch is on stable storage. With 'interval:<ms>' the batch will be on stable storage within that "
        "time; a power cut can lose it before. With 'os' the batch is in the page cache; a power cut can "
        "lose it. Metadata, committed offsets and groups are always synced.",
        check=sync_interval_ms,
    )
    headrace_delay_enable: bool = _default_of("headrace.delay.enable")
    headrace_delay_max_ms: int = _default_of("headrace.delay.max.ms")
    headrace_filter_enable: bool = _default_of("headrace.filter.enable")
    headrace_key_serde: str = _default_of("headrace.key.serde")
    headrace_partitioner: str = _default_of("headrace.partitioner")
    headrace_serde: str = _default_of("headrace.serde")
    headrace_storage: str = _default_of("headrace.storage")
    headrace_ttl_enable: bool = _default_of("headrace.ttl.enable")
    fetch_max_bytes: int = option(
        57_671_680,
        "The largest fetch response, whatever the client asks for.",
        type=_INT,
        minimum=1024,
    )
    headrace_log_dir_min_free_bytes: int = option(
        16_777_216,
        "The free space in a log directory below which the broker refuses to append records there, with an "
        "error that clients retry. The remaining space is for committed offsets, metadata and checkpoints. "
        "With 0 the broker refuses records only when the disk is full.",
        minimum=0,
        dynamic=True,
    )
    listeners: str = option(
        "PLAINTEXT://127.0.0.1:9092",
        "The addresses on which the broker accepts connections: NAME://host:port, separated by commas. An "
        "address without a host means all addresses of the machine. The option `--listen` of the command "
        "has precedence. A broker inside a program listens where the program says.",
        type=OptionType.LIST,
    )
    log_cleaner_backoff_ms: int = option(
        15_000,
        "The time between two checks of the compacted logs when no log needs compaction.",
        minimum=1,
        dynamic=True,
    )
    log_cleaner_delete_retention_ms: int = _default_of("delete.retention.ms")
    log_cleaner_max_compaction_lag_ms: int = _default_of("max.compaction.lag.ms")
    log_cleaner_min_cleanable_ratio: float = _default_of("min.cleanable.dirty.ratio")
    log_cleaner_min_compaction_lag_ms: int = _default_of("min.compaction.lag.ms")
    log_cleanup_policy: str = _default_of("cleanup.policy")
    log_dirs: str = option(
        "",
        "The data directories, each best on its own disk. The first directory also holds the metadata and "
        "the internal topics. The option `--data` of the command has precedence.",
        type=OptionType.LIST,
    )
    log_flush_interval_messages: int = _default_of("flush.messages")
    log_flush_interval_ms: int = _default_of("flush.ms")
    log_index_interval_bytes: int = _default_of("index.interval.bytes")
    log_index_size_max_bytes: int = _default_of("segment.index.bytes")
    log_message_timestamp_after_max_ms: int = _default_of("message.timestamp.after.max.ms")
    log_message_timestamp_before_max_ms: int = _default_of("message.timestamp.before.max.ms")
    log_message_timestamp_type: str = _default_of("message.timestamp.type")
    log_preallocate: bool = _default_of("preallocate")
    log_retention_bytes: int = _default_of("retention.bytes")
    log_retention_check_interval_ms: int = option(
        300_000,
        "The time between two checks for segments that are old enough to be closed or deleted.",
        minimum=1,
    )
    log_retention_ms: int = _default_of("retention.ms")
    log_roll_jitter_ms: int = _default_of("segment.jitter.ms")
    log_roll_ms: int = _default_of("segment.ms")
    log_segment_bytes: int = _default_of("segment.bytes")
    log_segment_delete_delay_ms: int = _default_of("file.delete.delay.ms")
    max_connections: int = option(
        10_000,
        "The number of connections that the broker accepts at a time. The number is lower if the process "
        "may not open enough files. Open connections stay when the number is lowered.",
        type=_INT,
        minimum=1,
        dynamic=True,
    )
    max_connections_per_ip: int = option(
        200,
        "The number of connections of one address at a time. There is no such bound for loopback addresses. "
        "Open connections stay when the number is lowered.",
        type=_INT,
        minimum=0,
        dynamic=True,
    )
    max_incremental_fetch_session_cache_slots: int = option(
        1000,
        "The number of fetch sessions that the broker keeps. With 0 every fetch is a full one.",
        type=_INT,
        minimum=0,
    )
    max_partitions: int = option(
        20_000,
        "The number of partitions that the broker can hold, including those of internal topics.",
        type=_INT,
        minimum=1,
    )
    max_partitions_per_topic: int = option(
        10_000,
        "The number of partitions that a topic can have.",
        type=_INT,
        minimum=1,
    )
    max_topics_per_request: int = option(
        1000,
        "The number of topics that one request can create or describe.",
        type=_INT,
        minimum=1,
    )
    message_max_bytes: int = _default_of("max.message.bytes")
    min_insync_replicas: int = _default_of("min.insync.replicas")
    num_partitions: int = option(
        1,
        "The number of partitions of a topic that is created without a number.",
        type=_INT,
        minimum=1,
    )
    producer_id_expiration_ms: int = option(
        86_400_000,
        "The time for which a partition keeps the sequence number of a producer that sends nothing.",
        type=_INT,
        minimum=1,
        dynamic=True,
    )
    quota_window_num: int = option(
        11,
        "The number of windows over which the rates of client quotas are measured.",
        type=_INT,
        minimum=1,
    )
    quota_window_size_seconds: int = option(
        1, "The length of each window of client quotas.", type=_INT, minimum=1
    )
    replica_fetch_backoff_ms: int = option(
        1_000,
        "The time for which a follower leaves out a partition, or a leader, after an error.",
        type=_INT,
        minimum=1,
    )
    replica_fetch_max_bytes: int = option(
        1_048_576,
        "The bytes of one partition that a follower asks for in one fetch. A larger batch is fetched alone.",
        type=_INT,
        minimum=1,
    )
    replica_fetch_response_max_bytes: int = option(
        2_097_152,
        "The bytes that a follower asks for in one fetch. The follower appends them in one step, so clients of this "
        "broker wait meanwhile. Kafka's default is 10485760.",
        type=_INT,
        minimum=1,
    )
    replica_fetch_wait_max_ms: int = option(
        500,
        "The time for which a leader lets the fetch of a follower wait for records. It must not exceed "
        "replica.lag.time.max.ms.",
        type=_INT,
        minimum=1,
        maximum=30_000,
    )
    replica_high_watermark_checkpoint_interval_ms: int = option(
        5_000,
        "The time between two checkpoints of the high watermarks of a data directory.",
        minimum=1,
    )
    replica_lag_max_messages: int = option(
        -1,
        "The number of records by which an in-sync replica can lag behind its leader. A replica that lags by more for "
        "10 seconds leaves the in-sync replicas; a shorter burst of records does not remove it. -1: no limit.",
        minimum=-1,
    )
    replica_lag_time_max_ms: int = option(
        30_000,
        "The time after which a replica leaves the in-sync replicas, if it has not had the end of its leader's log "
        "meanwhile.",
        minimum=1,
    )
    socket_request_max_bytes: int = option(
        104_857_600, "The largest Produce request that the broker reads.", type=_INT, minimum=1
    )
    unclean_leader_election_enable: bool = _default_of("unclean.leader.election.enable")


BROKER_OPTIONS: Final[Mapping[str, Option]] = options_of(BrokerConfig)

BROKER_ALIASES: Final[Mapping[str, tuple[str, int]]] = {
    "log.retention.hours": ("log.retention.ms", 3_600_000),
    "log.retention.minutes": ("log.retention.ms", 60_000),
    "log.roll.hours": ("log.roll.ms", 3_600_000),
    "log.roll.jitter.hours": ("log.roll.jitter.ms", 3_600_000),
    "node.id": ("broker.id", 1),
}
"""Kafka's other names of options: the option, and the factor that converts the number into the option's unit."""


def parse_broker_config(values: Mapping[str, str | None]) -> BrokerConfig:
    """Build a broker's configuration from text under Kafka's names.

    If a time is set in hours, minutes and milliseconds, the finest unit counts, as in Kafka.

    Raises:
        ConfigError: A key is unknown, a value is invalid, or two names of one option have different values.
    """
    plain: dict[str, str | None] = {}
    ours, overrides = split_overrides(values)
    by_unit = sorted(ours.items(), key=lambda item: -BROKER_ALIASES.get(item[0], ("", 1))[1])
    for name, text in by_unit:
        target, unit = BROKER_ALIASES.get(name, (name, 1))
        if target not in BROKER_OPTIONS:
            raise _not_ours(name)
        if unit == 1 and target == "broker.id" and plain.get(target, text) != text:
            raise ConfigError(f"{name}: {target} is given under two names")
        plain[target] = text if text is None or unit == 1 else _scaled(target, text, unit)
    config = replace(parse(BrokerConfig, plain), listener_overrides=overrides)
    parse_protocol_map(config.listener_security_protocol_map)
    parse_advertised(config.advertised_listeners)
    if config.replica_fetch_wait_max_ms > config.replica_lag_time_max_ms:
        raise ConfigError(
            f"replica.fetch.wait.max.ms: {config.replica_fetch_wait_max_ms} exceeds replica.lag.time.max.ms="
            f"{config.replica_lag_time_max_ms}: an idle replica would leave the in-sync replicas"
        )
    return config


def dynamic_option(name: str) -> Option:
    """Return an option that can be changed while the broker runs.

    Raises:
        ConfigError: The option does not exist.
        InvalidRequestError: The option is fixed at the start of the broker.
    """
    target, _ = BROKER_ALIASES.get(name, (name, 1))
    if target not in BROKER_OPTIONS:
        raise _not_ours(name)
    described = BROKER_OPTIONS[target]
    if not described.dynamic:
        raise InvalidRequestError(f"{name} cannot be changed while the broker runs")
    if target != name:
        raise InvalidRequestError(
            f"{name} cannot be changed while the broker runs; {target} can, and means the same"
        )
    return described


def _not_ours(name: str) -> ConfigError:
    """Return the error for a name that is no option of Headrace. Kafka may have such an option."""
    refused, reason = refused_option(name), accepted_reason(name)
    if refused is not None:
        return refusal(name, refused)
    if reason is not None:
        return ConfigError(f"{name} does nothing here: {reason}; leave it out")
    return unknown_key(name, [*BROKER_OPTIONS, *BROKER_ALIASES])


def with_dynamic_settings(config: BrokerConfig, settings: Mapping[str, str]) -> BrokerConfig:
    """Return the configuration with changed dynamic options.

    Raises:
        ConfigError: An option is unknown, or a value is invalid.
        InvalidRequestError: An option is not dynamic.
    """
    values = {
        name.replace(".", "_"): parse_value(name, dynamic_option(name), text)
        for name, text in settings.items()
    }
    return replace(config, **values)  # type: ignore[arg-type]  # parse_value returns the option's own type


def _scaled(target: str, text: str, unit: int) -> str:
    number = parse_value(target, BROKER_OPTIONS[target], text)
    # Kafka reads any negative number of hours as "no limit".
    return str(int(number) * unit if int(number) >= 0 else -1)
