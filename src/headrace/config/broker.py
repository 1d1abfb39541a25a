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
from headrace.config.security import BrokerSecurityConfig, split_overrides
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
class BrokerConfig(BrokerSecurityConfig):
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
        "The number of replicas of each partition of a topic that is created without a number. A broker "
        "holds one replica.",
        type=_INT,
        minimum=1,
        maximum=1,
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
    group_consumer_assignment_interval_ms: int = option(
        0,
        "The least time between two target assignments of a consumer group (KIP-848). Changes within this "
        "time lead to one assignment. A value above 0 saves CPU in groups of thousands of members that join "
        "and leave together, but members wait longer for partitions.",
        type=_INT,
        minimum=0,
    )
    group_consumer_assignors: str = option(
        "uniform,range",
        "The assignors that members of consumer groups (KIP-848) can choose; the first one is the default. "
        "The names are `uniform`, `range`, and the names of entry points in the group "
        "`headrace.group_assignors` of installed packages.",
        type=OptionType.LIST,
    )
    group_consumer_heartbeat_interval_ms: int = option(
        5000,
        "The time between two heartbeats of a member of a consumer group (KIP-848). A group can have its "
        "own value.",
        type=_INT,
        minimum=1,
    )
    group_consumer_max_assignment_interval_ms: int = option(
        15_000,
        "The longest assignment interval that a group can have as its own value.",
        type=_INT,
        minimum=0,
    )
    group_consumer_max_heartbeat_interval_ms: int = option(
        15_000,
        "The longest heartbeat interval that a group can have as its own value.",
        type=_INT,
        minimum=1,
    )
    group_consumer_max_session_timeout_ms: int = option(
        60_000,
        "The longest session timeout that a group can have as its own value.",
        type=_INT,
        minimum=1,
    )
    group_consumer_max_size: int = option(
        1000,
        "The number of members that a consumer group (KIP-848) can have.",
        type=_INT,
        minimum=1,
    )
    group_consumer_migration_policy: str = option(
        "bidirectional",
        "When a group with members changes between the classic protocol and the protocol of KIP-848. "
        "`upgrade`: when a consumer joins a classic group. `downgrade`: when the last consumer leaves and "
        "classic members remain. `bidirectional`: in both cases. `disabled`: never. A group without members "
        "takes the protocol of the next member that joins.",
        choices=("bidirectional", "upgrade", "downgrade", "disabled"),
    )
    group_consumer_min_assignment_interval_ms: int = option(
        0,
        "The shortest assignment interval that a group can have as its own value.",
        type=_INT,
        minimum=0,
    )
    group_consumer_min_heartbeat_interval_ms: int = option(
        5000,
        "The shortest heartbeat interval that a group can have as its own value.",
        type=_INT,
        minimum=1,
    )
    group_consumer_min_session_timeout_ms: int = option(
        45_000,
        "The shortest session timeout that a group can have as its own value.",
        type=_INT,
        minimum=1,
    )
    group_consumer_session_timeout_ms: int = option(
        45_000,
        "The time without a heartbeat after which a member of a consumer group (KIP-848) is removed. A "
        "group can have its own value.",
        type=_INT,
        minimum=1,
    )
    group_initial_rebalance_delay_ms: int = option(
        3000,
        "The time for which the first rebalance of an empty group waits for more members.",
        type=_INT,
        minimum=0,
    )
    group_max_session_timeout_ms: int = option(
        1_800_000, "The longest session timeout that a member can ask for.", type=_INT, minimum=1
    )
    group_max_size: int = option(
        1000,
        "The number of members that a group of the classic protocol can have.",
        type=_INT,
        minimum=1,
    )
    group_min_session_timeout_ms: int = option(
        6000, "The shortest session timeout that a member can ask for.", type=_INT, minimum=1
    )
    headrace_log_dir_min_free_bytes: int = option(
        16_777_216,
        "The free space in a log directory below which the broker refuses to append records there, with an "
        "error that clients retry. The remaining space is for committed offsets, metadata and checkpoints. "
        "With 0 the broker refuses records only when the disk is full.",
        minimum=0,
        dynamic=True,
    )
    headrace_transaction_version: int = option(
        2,
        "The finalized level of the feature transaction.version. With 2 clients give each transaction its "
        "own epoch (KIP-890). With 0 or 1 they use the classic protocol. The broker serves both at any "
        "level. `kafka-features.sh` changes the level too.",
        type=_INT,
        minimum=0,
        maximum=2,
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
    max_transactional_ids: int = option(
        100_000,
        "The number of transactional ids that the broker keeps in each partition of `__transaction_state`. "
        "Producers with further ids are refused.",
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
    offset_metadata_max_bytes: int = option(
        4096, "The longest text that a client can commit with an offset.", type=_INT, minimum=0
    )
    offsets_retention_minutes: int = option(
        10_080,
        "The time for which the broker keeps the committed offsets of a group without members.",
        type=_INT,
        minimum=1,
    )
    offsets_topic_num_partitions: int = option(
        50,
        "The number of partitions of `__consumer_offsets`. It is fixed when the topic is created.",
        type=_INT,
        minimum=1,
    )
    offsets_topic_segment_bytes: int = option(
        4_194_304,
        "The setting segment.bytes of `__consumer_offsets`, used when the topic is created. The last "
        "segment of a partition is not compacted, and the broker reads all of it when it starts.",
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
    replica_high_watermark_checkpoint_interval_ms: int = option(
        5_000,
        "The time between two checkpoints of the high watermarks of a data directory.",
        minimum=1,
    )
    socket_request_max_bytes: int = option(
        104_857_600, "The largest Produce request that the broker reads.", type=_INT, minimum=1
    )
    transaction_max_timeout_ms: int = option(
        900_000,
        "The longest transaction.timeout.ms that a producer can ask for. The broker aborts a transaction "
        "that takes longer than the timeout of its producer.",
        type=_INT,
        minimum=1,
    )
    transaction_remove_expired_transaction_cleanup_interval_ms: int = option(
        3_600_000,
        "The time between two checks for transactional ids that have expired.",
        type=_INT,
        minimum=1,
    )
    transaction_state_log_min_isr: int = option(
        1,
        "The setting min.insync.replicas of `__transaction_state`, used when the topic is created. There is "
        "one replica.",
        type=_INT,
        minimum=1,
    )
    transaction_state_log_num_partitions: int = option(
        50,
        "The number of partitions of `__transaction_state`. It is fixed when the topic is created.",
        type=_INT,
        minimum=1,
    )
    transaction_state_log_segment_bytes: int = option(
        4_194_304,
        "The setting segment.bytes of `__transaction_state`, used when the topic is created. The last "
        "segment of a partition is not compacted, and the broker reads all of it when it starts.",
        type=_INT,
        minimum=1,
    )
    transactional_id_expiration_ms: int = option(
        604_800_000,
        "The time after its last use for which the broker keeps a transactional id.",
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
