"""The end of a leader epoch, as a new leader reports it to consumers."""

from __future__ import annotations

from headrace.errors import ErrorCode
from headrace.protocol.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from tests.fixtures.broker_harness import batch, produce_request
from tests.fixtures.cluster import SimulatedCluster


def test_a_new_leader_with_an_old_high_watermark_reports_no_truncation_to_consumers() -> None:
    cluster = SimulatedCluster(3)
    cluster.create_topic("t", replicas=[(1, 2, 3)])
    epoch = cluster.state("t").leader_epoch
    sent = cluster.brokers[1].send(produce_request("t", 0, batch(b"a", b"b")))
    cluster.run_until(lambda: sent.done)
    cluster.cut(2, 3)
    cluster.kill(1, ends_session=True)
    cluster.run_until(lambda: cluster.leader("t") > 1)
    leader = cluster.brokers[cluster.leader("t")]
    replica = cluster.replica(leader.broker_id, "t")
    cluster.run_until(lambda: replica.leader_epoch > epoch)
    assert replica.high_watermark < 2, "the new leader does not know yet what is committed"
    wanted = OffsetForLeaderPartition(
        partition=0, leader_epoch=epoch, current_leader_epoch=replica.leader_epoch
    )
    request = OffsetForLeaderEpochRequest(
        replica_id=-1, topics=[OffsetForLeaderTopic(topic="t", partitions=[wanted])]
    )
    (answer,) = leader.call(request).topics[0].partitions
    assert (answer.error_code, answer.leader_epoch, answer.end_offset) == (ErrorCode.NONE, epoch, 2)
