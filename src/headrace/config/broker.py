"""A broker's configuration, under Kafka's names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

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
from headrace.config.security import SecurityConfig, split_overrides
from headrace.config.topic import TOPIC_OPTIONS, TopicConfig
from headrace.errors import ConfigError, InvalidRequestError

_INT = OptionType.INT
_DEFAULT_TOPIC: Final = TopicConfig()


def _default_of(topic_option: str) -> Any:
    """Declare the broker's option that gives a topic's option its default."""
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
class BrokerConfig(SecurityConfig):
    """What a broker is told. Options that are `dynamic` can be changed while it runs: it gets another object then."""

    advertised_listeners: str = option(
        "",
        "The addresses that clients are told to use, as NAME://host:port, one for a listener. Clients of a listener "
        "that has none are told the address that they connected to, which is right on one node unless a proxy or a "
        "port mapping lies between.",
    )
    auto_create_topics_enable: bool = option(
        default=True,
        documentation="Whether asking for the metadata of a topic that does not exist may create it.",
    )
    broker_id: int = option(
        1,
        "The number of this broker. `node.id` is accepted as well.",
        type=_INT,
        minimum=0,
    )
    compression_gzip_level: int = _default_of("compression.gzip.level")
    compression_lz4_level: int = _default_of("compression.lz4.level")
    compression_type: str = _default_of("compression.type")
    compression_zstd_level: int = _default_of("compression.zstd.level")
    connections_max_idle_ms: int = option(
        600_000,
        "How long a connection may be idle before the broker closes it.",
        minimum=1,
    )
    default_replication_factor: int = option(
        1,
        "Replicas of a partition when a topic's creator does not say. One node holds one.",
        type=_INT,
        minimum=1,
        maximum=1,
    )
    delete_topic_enable: bool = option(
        default=True, documentation="Whether topics can be deleted by clients."
    )
    durability: str = option(
        "fsync",
        "Default of headrace.durability for topics: what an acknowledgement means. 'fsync': the batch is on stable "
        "storage. 'interval:<ms>': it will be within that time, which is what a power cut may take. 'os': it is in the "
        "page cache. Metadata, committed offsets and groups are always synced. Headrace's own option.",
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
        "Largest fetch response, whatever the client asks for.",
        type=_INT,
        minimum=1024,
    )
    group_consumer_assignment_interval_ms: int = option(
        0,
        "How long a consumer group (KIP-848) keeps a target assignment at least: what changes meanwhile is looked at "
        "once. More than 0 spares work in groups of thousands of members that come and go together, and makes a "
        "member wait for partitions.",
        type=_INT,
        minimum=0,
    )
    group_consumer_assignors: str = option(
        "uniform,range",
        "The assignors that members of consumer groups (KIP-848) may ask for, the default first: `uniform`, `range`, "
        "and names under which installed packages offer others as entry points of the group "
        "`headrace.group_assignors`.",
        type=OptionType.LIST,
    )
    group_consumer_heartbeat_interval_ms: int = option(
        5000,
        "How often a member of a consumer group (KIP-848) is told to send a heartbeat; a group can have an interval "
        "of its own.",
        type=_INT,
        minimum=1,
    )
    group_consumer_max_assignment_interval_ms: int = option(
        15_000,
        "Longest assignment interval that a group can have of its own.",
        type=_INT,
        minimum=0,
    )
    group_consumer_max_heartbeat_interval_ms: int = option(
        15_000, "Longest heartbeat interval that a group can have of its own.", type=_INT, minimum=1
    )
    group_consumer_max_session_timeout_ms: int = option(
        60_000, "Longest session timeout that a group can have of its own.", type=_INT, minimum=1
    )
    group_consumer_max_size: int = option(
        1000, "How many members a consumer group (KIP-848) may have.", type=_INT, minimum=1
    )
    group_consumer_migration_policy: str = option(
        "bidirectional",
        "Whether a group that has members changes between the classic protocol and KIP-848's: when a consumer joins "
        "a classic group (`upgrade`), when the last consumer leaves and classic members remain (`downgrade`), in both "
        "cases (`bidirectional`), or never (`disabled`). One without members always can: whoever joins next decides.",
        choices=("bidirectional", "upgrade", "downgrade", "disabled"),
    )
    group_consumer_min_assignment_interval_ms: int = option(
        0, "Shortest assignment interval that a group can have of its own.", type=_INT, minimum=0
    )
    group_consumer_min_heartbeat_interval_ms: int = option(
        5000, "Shortest heartbeat interval that a group can have of its own.", type=_INT, minimum=1
    )
    group_consumer_min_session_timeout_ms: int = option(
        45_000, "Shortest session timeout that a group can have of its own.", type=_INT, minimum=1
    )
    group_consumer_session_timeout_ms: int = option(
        45_000,
        "How long a member of a consumer group (KIP-848) may be silent before it is removed; a group can have a "
        "timeout of its own.",
        type=_INT,
        minimum=1,
    )
    group_initial_rebalance_delay_ms: int = option(
        3000,
        "How long the first rebalance of an empty group waits for more members.",
        type=_INT,
        minimum=0,
    )
    group_max_session_timeout_ms: int = option(
        1_800_000, "Longest session timeout a member may ask for.", type=_INT, minimum=1
    )
    group_max_size: int = option(1000, "How many members a group may have.", type=_INT, minimum=1)
    group_min_session_timeout_ms: int = option(
        6000, "Shortest session timeout a member may ask for.", type=_INT, minimum=1
    )
    headrace_log_dir_min_free_bytes: int = option(
        16_777_216,
        "With less free space than this in a log directory produces to it are refused, with a retriable error, until "
        "there is more: the rest is for offsets, metadata and checkpoints. 0 refuses them only when the disk is full. "
        "Headrace's own option.",
        minimum=0,
        dynamic=True,
    )
    headrace_transaction_version: int = option(
        2,
        "The finalized level of the feature transaction.version. With 2 clients give every transaction an epoch of its "
        "own (KIP-890), with less they speak the classic protocol; the broker serves both at any level. UpdateFeatures "
        "(kafka-features.sh) changes it, too.",
        type=_INT,
        minimum=0,
        maximum=2,
        dynamic=True,
    )
    listeners: str = option(
        "PLAINTEXT://127.0.0.1:9092",
        "Where to accept connections: NAME://host:port, several with commas between; without a host on all addresses. "
        "The flag --listen says the same, and wins. A broker inside a program listens where the program says.",
        type=OptionType.LIST,
    )
    log_cleaner_backoff_ms: int = option(
        15_000,
        "How often compacted logs are looked at while none needs compaction.",
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
        "The directories that hold the data, each best on a disk of its own. The first one also holds the metadata and "
        "the broker's own topics. The flag --data says the same, and wins.",
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
        "How often segments are looked for that are old enough to be deleted, or to be closed.",
        minimum=1,
    )
    log_retention_ms: int = _default_of("retention.ms")
    log_roll_jitter_ms: int = _default_of("segment.jitter.ms")
    log_roll_ms: int = _default_of("segment.ms")
    log_segment_bytes: int = _default_of("segment.bytes")
    log_segment_delete_delay_ms: int = _default_of("file.delete.delay.ms")
    max_connections: int = option(
        10_000,
        "How many connections the broker accepts at one time. Fewer, if it may not open that many files. Those that "
        "are open stay when it is lowered.",
        type=_INT,
        minimum=1,
        dynamic=True,
    )
    max_connections_per_ip: int = option(
        200,
        "How many connections one address may hold; for this machine's own there is no such limit. Those that are open "
        "stay when it is lowered.",
        type=_INT,
        minimum=0,
        dynamic=True,
    )
    max_incremental_fetch_session_cache_slots: int = option(
        1000,
        "How many fetch sessions are remembered; with 0 every fetch is a full one.",
        type=_INT,
        minimum=0,
    )
    max_partitions: int = option(
        20_000,
        "How many partitions the broker holds, internal topics included. Headrace's own option.",
        type=_INT,
        minimum=1,
    )
    max_partitions_per_topic: int = option(
        10_000,
        "How many partitions one topic may have. Headrace's own option.",
        type=_INT,
        minimum=1,
    )
    max_topics_per_request: int = option(
        1000,
        "How many topics one request may create or describe. Headrace's own option.",
        type=_INT,
        minimum=1,
    )
    max_transactional_ids: int = option(
        100_000,
        "How many transactional ids the broker remembers in each partition of the topic of transactions; producers "
        "with further ones are refused. Headrace's own option.",
        type=_INT,
        minimum=1,
    )
    message_max_bytes: int = _default_of("max.message.bytes")
    min_insync_replicas: int = _default_of("min.insync.replicas")
    num_partitions: int = option(
        1, "Partitions of a topic when its creator does not say.", type=_INT, minimum=1
    )
    offset_metadata_max_bytes: int = option(
        4096, "Longest text that may go with a committed offset.", type=_INT, minimum=0
    )
    offsets_retention_minutes: int = option(
        10_080,
        "How long the offsets of a group without members are kept.",
        type=_INT,
        minimum=1,
    )
    offsets_topic_num_partitions: int = option(
        50,
        "Partitions of the topic of committed offsets; fixed once the topic exists.",
        type=_INT,
        minimum=1,
    )
    offsets_topic_segment_bytes: int = option(
        4_194_304,
        "segment.bytes of the topic of committed offsets, when it is created. The last segment of a partition is not "
        "compacted, and all of it is read when the broker starts.",
        type=_INT,
        minimum=1,
    )
    producer_id_expiration_ms: int = option(
        86_400_000,
        "How long a partition remembers the sequence of a producer that is silent.",
        type=_INT,
        minimum=1,
        dynamic=True,
    )
    quota_window_num: int = option(
        11, "How many windows the rates of client quotas are measured over.", type=_INT, minimum=1
    )
    quota_window_size_seconds: int = option(
        1, "How long each window of client quotas is.", type=_INT, minimum=1
    )
    socket_request_max_bytes: int = option(
        104_857_600, "Largest request that is read.", type=_INT, minimum=1
    )
    transaction_max_timeout_ms: int = option(
        900_000,
        "Longest transaction.timeout.ms that a producer may ask for. A transaction that takes longer than its producer "
        "has said is aborted.",
        type=_INT,
        minimum=1,
    )
    transaction_remove_expired_transaction_cleanup_interval_ms: int = option(
        3_600_000,
        "How often transactional ids are looked for that have not been used for long.",
        type=_INT,
        minimum=1,
    )
    transaction_state_log_min_isr: int = option(
        1,
        "min.insync.replicas of the topic of transactions, when it is created. There is one replica.",
        type=_INT,
        minimum=1,
    )
    transaction_state_log_num_partitions: int = option(
        50,
        "Partitions of the topic of transactions; fixed once the topic exists.",
        type=_INT,
        minimum=1,
    )
    transaction_state_log_segment_bytes: int = option(
        4_194_304,
        "segment.bytes of the topic of transactions, when it is created. The last segment of a partition is not "
        "compacted, and all of it is read when the broker starts.",
        type=_INT,
        minimum=1,
    )
    transactional_id_expiration_ms: int = option(
        604_800_000,
        "How long a transactional id is remembered after its last use.",
        type=_INT,
        minimum=1,
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
"""Other names of an option that Kafka has, and the unit of their number in the unit of the option."""


def parse_broker_config(values: Mapping[str, str | None]) -> BrokerConfig:
    """Build a broker's configuration from text under Kafka's names.

    Raises:
        ConfigError: A key is unknown, a value not acceptable, or two names of one option are given that differ. Of
            hours, minutes and milliseconds the finest unit counts, as in Kafka.
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
    return config


def dynamic_option(name: str) -> Option:
    """Return an option that can be changed while the broker runs.

    Raises:
        ConfigError: There is no such option.
        InvalidRequestError: It is fixed at the broker's start.
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
    """Return the error for a name that no option has: Kafka may have it."""
    refused, reason = refused_option(name), accepted_reason(name)
    if refused is not None:
        return refusal(name, refused)
    if reason is not None:
        return ConfigError(f"{name} does nothing here: {reason}; leave it out")
    return unknown_key(name, [*BROKER_OPTIONS, *BROKER_ALIASES])


def with_dynamic_settings(config: BrokerConfig, settings: Mapping[str, str]) -> BrokerConfig:
    """Return the configuration with some of its dynamic options changed.

    Raises:
        ConfigError: An option is unknown or a value not acceptable.
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
