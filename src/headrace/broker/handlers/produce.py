"""Produce (API key 0), versions 3-13 (advertised from 0, see `headrace.broker.handlers.api_versions`).

Behaviour:
* The broker checks and appends each partition by itself, and each has its own result.
* With acks=all the response waits until the batch is below the high watermark, with acks=1 until it is durable on this
  broker. Both are the same for a partition with one replica. acks=0 gets no response; if a partition fails, the broker
  closes the connection, so that the client notices.
* With acks=2 or more the response waits until so many in-sync replicas have the batch, the leader included. More than
  the replicas of a partition is INVALID_REQUIRED_ACKS for the partition, more than are in sync NOT_ENOUGH_REPLICAS.
* headrace.acks of a topic is the least acks, whatever the request says. With fewer in-sync replicas the error is
  NOT_ENOUGH_REPLICAS, with acks=0 and acks=all, too.
* If `timeout_ms` passes first, the error is REQUEST_TIMED_OUT, never a success.
* A retry of an idempotent producer gets the original offset when that offset is durable.
* With acks=all and fewer in-sync replicas than min.insync.replicas the error is NOT_ENOUGH_REPLICAS, and nothing is
  appended. If replicas leave while a batch waits, the error is NOT_ENOUGH_REPLICAS_AFTER_APPEND. As in Kafka since 4.0
  a partition never needs more in-sync replicas than it has.
* On a compacted topic a batch with a record without a key is INVALID_RECORD. With headrace.ttl.enable so is a batch
  with a record whose headrace.ttl-ms is invalid.
* If the topic's compression.type is a codec, a batch with another codec is compressed again
  (`headrace.broker.recompression`); the error is INVALID_RECORD if its records cannot be decoded.
* With headrace.delay.enable records with a delivery time in their headers become scheduled records
  (`headrace.broker.scheduled_records`). The schedule is durable before the response is sent.
* A transactional batch must belong to the open transaction of its producer; otherwise the error is INVALID_TXN_STATE,
  from v11 on TRANSACTION_ABORTABLE. A producer that another one has replaced gets INVALID_PRODUCER_EPOCH. Up to v11 the
  producer must have added the partition to the transaction before.
* From v12 on the first batch adds the partition (KIP-890), and is appended when the addition is durable. While the
  producer's previous transaction is being completed, the batch waits for up to 100 ms; then the error is
  CONCURRENT_TRANSACTIONS.
* From v13 on a topic is named by its id (KIP-516). An id that no topic has is UNKNOWN_TOPIC_ID.
* From v10 on NOT_LEADER_OR_FOLLOWER comes with the leader and its address, if another live broker leads the partition
  (KIP-951).
Not implemented: The message formats 0 and 1 (KIP-896).
Versions: v3 record batches; v5 log start offset; v7 zstd; v8 error messages; v9 flexible; v10 the new leader; v11
TRANSACTION_ABORTABLE; v12 adds partitions; v13 topic ids.
"""

from __future__ import annotations

from typing import Final, TypeAlias

from headrace.broker.cluster_views import MOVED, NewLeaders
from headrace.broker.context import CloseConnection, RequestContext
from headrace.broker.partitions.produce_cost import (
    COST_AT_ONCE,
    RECORD_COST,
    begins_several,
    cost_of,
    decodes_several,
    is_empty,
    recompresses,
    record_count,
)
from headrace.broker.produced_batches import (
    ACKS_NONE,
    TOPIC_IDS_VERSION,
    ProducedBatches,
    find_names,
)
from headrace.broker.services import Services
from headrace.broker.waiting.delayed_produce import DelayedProduce
from headrace.broker.waiting.steps import FIRST_BATCH_COST, Work
from headrace.deferred import Deferred
from headrace.errors import ApiError, ErrorCode
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.messages.produce import (
    LeaderIdAndEpoch,
    NodeEndpoint,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)
from headrace.protocol.versions import VersionRange
from headrace.records.raw import METER

API_KEY: Final = ApiKey.PRODUCE
VERSIONS: Final = VersionRange(0, 13)
SERVED: Final = VersionRange(3, 13)

LEADERS_VERSION: Final = 10
"""The first version whose response has the addresses of leaders."""

Answer: TypeAlias = ProduceResponse | Deferred[ProduceResponse] | None


def handle(
    services: Services, context: RequestContext, request: ProduceRequest
) -> Answer | Work[Answer]:
    """Append the records of every partition."""
    topics = request.topic_data
    if context.header.api_version >= TOPIC_IDS_VERSION:
        find_names(services, topics)
    batches = ProducedBatches(services, context, request)
    is_one_batch = len(topics) == 1 and len(topics[0].partition_data) == 1
    if recompresses(services.topics, topics) or (
        not is_one_batch  # one batch cannot be divided into steps
        and (
            cost_of(topics) > COST_AT_ONCE
            or decodes_several(services.topics, topics)
            or begins_several(services.partitions, topics)
        )
    ):
        return _append_in_steps(services, context, request, batches)
    response = ProduceResponse(
        responses=[
            TopicProduceResponse(
                name=topic.name,
                topic_id=topic.topic_id,
                partition_responses=batches.append_all(topic),
            )
            for topic in topics
        ]
    )
    return _answer(services, context, request, batches, response)


def _append_in_steps(
    services: Services, context: RequestContext, request: ProduceRequest, batches: ProducedBatches
) -> Work[Answer]:
    # The records stay where they are in the connection's buffer: it receives nothing while its session is busy.
    response, by_id = ProduceResponse(), batches.finds_topics_by_id
    for topic in request.topic_data:
        answer = TopicProduceResponse(name=topic.name, topic_id=topic.topic_id)
        response.responses.append(answer)
        for sent in topic.partition_data:
            try:
                data = yield from batches.recompress(topic.name, sent)
            except ApiError as error:
                answer.partition_responses.append(batches.failed(sent.index, error))
                continue
            if by_id:  # since the last step the topic may be deleted, and a topic created that has its name
                find_names(services, [topic])
            one = TopicProduceData(name=topic.name, partition_data=[data])
            files = FIRST_BATCH_COST if is_empty(services.partitions, topic.name, data) else 0
            before = METER.decompressed
            answer.partition_responses += batches.append_all(one)
            looked_into = METER.decompressed - before
            records = RECORD_COST * record_count(data) if looked_into else 0
            yield cost_of([one]) + files + looked_into + records
    return (yield from _answer_in_steps(services, context, request, batches, response))


def _answer_in_steps(
    services: Services,
    context: RequestContext,
    request: ProduceRequest,
    batches: ProducedBatches,
    response: ProduceResponse,
) -> Work[Answer]:
    """Append the batches that wait for their transaction, too. The connection's next request waits meanwhile."""
    if batches.waits:
        yield from batches.enter_in_steps()
    batches.drop_lost()
    if request.acks == ACKS_NONE:
        _close_on_error(response)
        return None
    return _when_durable(services, context, request, response, batches)


def _answer(
    services: Services,
    context: RequestContext,
    request: ProduceRequest,
    batches: ProducedBatches,
    response: ProduceResponse,
) -> Answer | Work[Answer]:
    if request.acks == ACKS_NONE:
        _close_on_error(response)
        return None
    if batches.transactional is None or not batches.waits:
        return _when_durable(services, context, request, response, batches)
    if batches.waits_for_many:
        return _answer_in_steps(services, context, request, batches, response)
    answer: Deferred[ProduceResponse] = Deferred()

    def entered(_: None) -> None:
        batches.drop_lost()
        reply = _when_durable(services, context, request, response, batches)
        if isinstance(reply, Deferred):
            answer.follow(reply)
        else:
            services.purgatory.deliver_later(lambda: answer.resolve(response))

    batches.enter().on_done(entered)
    return answer


def _close_on_error(response: ProduceResponse) -> None:
    for topic in response.responses:
        for part in topic.partition_responses:
            if part.error_code != ErrorCode.NONE:
                raise CloseConnection(
                    f"acks=0 to {topic.name}-{part.index}: {ErrorCode(part.error_code).name}"
                )


def _when_durable(
    services: Services,
    context: RequestContext,
    request: ProduceRequest,
    response: ProduceResponse,
    batches: ProducedBatches,
) -> ProduceResponse | Deferred[ProduceResponse]:
    delayed, may_move = None, batches.has_moved
    acks = request.acks
    for partition, _, end_offset, part in batches.appended:
        if partition.log.high_watermark < end_offset:
            if partition.acks is not None:
                if services.replicas.has(partition, acks, end_offset):
                    continue
                may_move = True
            delayed = delayed or DelayedProduce(response, services.purgatory)
            delayed.wait_for(partition, acks, end_offset, part)
    if delayed is None:
        return _with_leaders(services, context, response) if may_move else response
    # The time of a client begins when its batches are appended, as in Kafka.
    services.purgatory.add(delayed, services.time.now_ms + max(0, request.timeout_ms))
    if may_move:
        return delayed.deferred.map(lambda found: _with_leaders(services, context, found))
    return delayed.deferred


def _with_leaders(
    services: Services, context: RequestContext, response: ProduceResponse
) -> ProduceResponse:
    """Return the response with the leaders of the partitions that this broker does not lead (KIP-951)."""
    if context.header.api_version < LEADERS_VERSION:
        return response
    leaders: NewLeaders | None = None
    for topic in response.responses:
        for part in topic.partition_responses:
            if part.error_code not in MOVED:
                continue
            leaders = leaders or NewLeaders(services, context)
            found = leaders.find(topic.name, part.index)
            if found is not None:
                part.current_leader = LeaderIdAndEpoch(leader_id=found[0], leader_epoch=found[1])
    if leaders is not None:
        response.node_endpoints = [
            NodeEndpoint(node_id=each.broker_id, host=each.host, port=each.port, rack=each.rack)
            for each in leaders.named.values()
        ]
    return response
