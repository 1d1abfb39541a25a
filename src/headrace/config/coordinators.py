"""The options of a broker for the coordinators of groups and transactions, under Kafka's names."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from headrace.config.options import OptionType, option
from headrace.config.zookeeper import BrokerZooKeeperConfig

_INT: Final = OptionType.INT


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorConfig(BrokerZooKeeperConfig):
    """The options of the coordinators, and of the internal topics in which the coordinators store their records."""

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
    max_transactional_ids: int = option(
        100_000,
        "The number of transactional ids that the broker keeps in each partition of `__transaction_state`. "
        "Producers with further ids are refused.",
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
    offsets_topic_replication_factor: int = option(
        3,
        "The number of replicas of each partition of `__consumer_offsets`, used when the topic is created. "
        "There are fewer replicas if there are fewer live brokers.",
        type=OptionType.SHORT,
        minimum=1,
    )
    offsets_topic_segment_bytes: int = option(
        4_194_304,
        "The setting segment.bytes of `__consumer_offsets`, used when the topic is created. The last "
        "segment of a partition is not compacted, and the broker reads all of it when it starts.",
        type=_INT,
        minimum=1,
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
        2,
        "The setting min.insync.replicas of `__transaction_state`, used when the topic is created. It is "
        "lower if the topic has fewer replicas.",
        type=_INT,
        minimum=1,
    )
    transaction_state_log_num_partitions: int = option(
        50,
        "The number of partitions of `__transaction_state`. It is fixed when the topic is created.",
        type=_INT,
        minimum=1,
    )
    transaction_state_log_replication_factor: int = option(
        3,
        "The number of replicas of each partition of `__transaction_state`, used when the topic is created. "
        "There are fewer replicas if there are fewer live brokers.",
        type=OptionType.SHORT,
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
