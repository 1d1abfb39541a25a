"""The records of transactions and of consumer groups (KIP-848), byte for byte as Apache Kafka 4.3 writes them.

The expected bytes were printed by Kafka's own classes, as those of `test_stored_records`.
"""

from __future__ import annotations

import struct

import pytest

from headrace.protocol.codec import Message
from headrace.protocol.messages import (
    consumer_group_current_record as current,
)
from headrace.protocol.messages import (
    consumer_group_member_record as member,
)
from headrace.protocol.messages import (
    consumer_group_metadata_record as group,
)
from headrace.protocol.messages import (
    consumer_group_regex_record as regex,
)
from headrace.protocol.messages import (
    consumer_group_target_member_record as target_member,
)
from headrace.protocol.messages import (
    consumer_group_target_record as target,
)
from headrace.protocol.messages import (
    transaction_log_record as log,
)
from tests.unit.protocol.test_stored_records import TIMESTAMP, assert_stored

TOPIC_ID = struct.pack(">qq", 1, 2)
STARTED = 1_700_000_000_001
KEYS: list[tuple[Message, str]] = [
    (log.TransactionLogKey(transactional_id="tx"), "000000027478"),
    (group.ConsumerGroupMetadataKey(group_id="g"), "0003000167"),
    (member.ConsumerGroupMemberMetadataKey(group_id="g", member_id="m"), "000500016700016d"),
    (target.ConsumerGroupTargetAssignmentMetadataKey(group_id="g"), "0006000167"),
    (
        target_member.ConsumerGroupTargetAssignmentMemberKey(group_id="g", member_id="m"),
        "000700016700016d",
    ),
    (
        current.ConsumerGroupCurrentMemberAssignmentKey(group_id="g", member_id="m"),
        "000800016700016d",
    ),
    (
        regex.ConsumerGroupRegularExpressionKey(group_id="g", regular_expression="f.*"),
        "00100001670003662e2a",
    ),
]


def transaction(version: int) -> log.TransactionLogValue:
    value = log.TransactionLogValue(
        producer_id=9,
        producer_epoch=3,
        transaction_timeout_ms=60_000,
        transaction_status=1,
        transaction_partitions=[log.PartitionsSchema(topic="flights", partition_ids=[1, 4])],
        transaction_last_update_timestamp_ms=TIMESTAMP,
        transaction_start_timestamp_ms=STARTED,
    )
    if version == 1:
        value.previous_producer_id, value.next_producer_id, value.next_producer_epoch = 8, 10, 0
        value.client_transaction_version = 2
    return value


NO_TRANSACTION = log.TransactionLogValue(
    producer_id=9,
    producer_epoch=3,
    transaction_timeout_ms=60_000,
    transaction_status=0,
    transaction_partitions=None,
    transaction_last_update_timestamp_ms=TIMESTAMP,
    transaction_start_timestamp_ms=-1,
)
CURRENT = current.ConsumerGroupCurrentMemberAssignmentValue(
    member_epoch=5,
    previous_member_epoch=4,
    state=1,
    assigned_partitions=[current.TopicPartitions(topic_id=TOPIC_ID, partitions=[1, 4])],
    partitions_pending_revocation=[
        current.TopicPartitions(topic_id=TOPIC_ID, partitions=[7], assignment_epochs=[3])
    ],
)
MEMBER = member.ConsumerGroupMemberMetadataValue(
    instance_id="i",
    rack_id=None,
    client_id="c",
    client_host="/127.0.0.1",
    subscribed_topic_names=["flights"],
    subscribed_topic_regex="f.*",
    rebalance_timeout_ms=60_000,
    server_assignor="uniform",
    classic_member_metadata=member.ClassicMemberMetadata(
        session_timeout_ms=10_000,
        supported_protocols=[member.ClassicProtocol(name="range", metadata=b"\x01\x02")],
    ),
)
VALUES: list[tuple[Message, int, str]] = [
    (
        transaction(0),
        0,
        (
            "0000000000000000000900030000ea6001000000010007666c69676874730000000200000001000000040000018bcfe56805"
            "0000018bcfe56801"
        ),
    ),
    (
        transaction(1),
        1,
        (
            "0001000000000000000900030000ea60010208666c6967687473030000000100000004000000018bcfe568050000018bcfe5"
            "680104000800000000000000080108000000000000000a0202000203020000"
        ),
    ),
    (
        NO_TRANSACTION,
        1,
        "0001000000000000000900030000ea6000000000018bcfe56805ffffffffffffffff00",
    ),
    (
        CURRENT,
        0,
        (
            "000000000005000000040102000000000000000100000000000000020300000001000000040002000000000000000100000000"
            "000000020200000007010005020000000300"
        ),
    ),
    (
        MEMBER,
        0,
        (
            "000002690002630b2f3132372e302e302e310208666c696768747304662e2a0000ea6008756e69666f726d0100110100002710"
            "020672616e67650301020000"
        ),
    ),
    (
        group.ConsumerGroupMetadataValue(epoch=6, metadata_hash=77),
        0,
        "000000000006010008000000000000004d",
    ),
    (
        regex.ConsumerGroupRegularExpressionValue(
            topics=["flights"], version=3, timestamp=TIMESTAMP
        ),
        0,
        "00000208666c696768747300000000000000030000018bcfe5680500",
    ),
    (
        target_member.ConsumerGroupTargetAssignmentMemberValue(
            topic_partitions=[target_member.TopicPartition(topic_id=TOPIC_ID, partitions=[1, 4])]
        ),
        0,
        "000002000000000000000100000000000000020300000001000000040000",
    ),
    (
        target.ConsumerGroupTargetAssignmentMetadataValue(
            assignment_epoch=6, assignment_timestamp=TIMESTAMP
        ),
        0,
        "0000000000060100080000018bcfe56805",
    ),
]


@pytest.mark.parametrize(("key", "expected"), KEYS, ids=lambda each: type(each).__name__)
def test_stored_keys_have_the_bytes_of_kafka(key: Message, expected: str) -> None:
    assert_stored(key, key.API_KEY, 0, expected)


@pytest.mark.parametrize(
    ("value", "version", "expected"), VALUES, ids=lambda each: type(each).__name__
)
def test_stored_values_have_the_bytes_of_kafka(value: Message, version: int, expected: str) -> None:
    assert_stored(value, version, version, expected)
