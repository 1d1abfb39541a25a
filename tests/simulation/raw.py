"""A transactional producer of transaction version 1 that sends each request by itself, as a careful client does."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NoReturn

from headrace.clients.consumer.group_metadata import GroupMetadata
from headrace.clients.flows.effects import Call, ClientState, Flow
from headrace.errors import ApiError, ErrorCode, TransportError
from headrace.protocol.codec import Message
from headrace.protocol.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from headrace.protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
)
from headrace.protocol.messages.end_txn import EndTxnRequest
from headrace.protocol.messages.init_producer_id import InitProducerIdRequest
from headrace.protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from headrace.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from headrace.records.builder import BatchBuilder
from headrace.types import TopicPartition

PASSING = frozenset(
    {
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
)


class RawProducer:
    """The producer. Every method is a flow. An error ends its transaction, and `init` has to follow."""

    def __init__(self, state: ClientState, transactional_id: str, timeout_ms: int) -> None:
        self._state = state
        self._name = transactional_id
        self._timeout_ms = timeout_ms
        self._id = self._epoch = -1
        self._sequences: dict[TopicPartition, int] = {}
        self._added: set[TopicPartition | str] = set()

    def init(self) -> Flow[None]:
        """Initialize the producer id, which aborts an open transaction of the previous producer."""
        request = InitProducerIdRequest(
            transactional_id=self._name,
            transaction_timeout_ms=self._timeout_ms,
            producer_id=-1,
            producer_epoch=-1,
        )
        answer = yield from self._ask(request, lambda answer: [answer.error_code])
        self._id, self._epoch = answer.producer_id, answer.producer_epoch
        self._sequences = {}
        self._added = set()

    def send(self, name: TopicPartition, values: list[bytes], now_ms: int) -> Flow[None]:
        """Add a partition to the transaction, and write records to it."""
        yield from self.add(name)
        yield from self.write(name, values, now_ms)

    def add(self, name: TopicPartition) -> Flow[None]:
        if name not in self._added:
            request = AddPartitionsToTxnRequest(
                v3_and_below_transactional_id=self._name,
                v3_and_below_producer_id=self._id,
                v3_and_below_producer_epoch=self._epoch,
                v3_and_below_topics=[
                    AddPartitionsToTxnTopic(name=name.topic, partitions=[name.partition])
                ],
            )
            yield from self._ask(request, _added_codes)
            self._added.add(name)

    def write(self, name: TopicPartition, values: list[bytes], now_ms: int) -> Flow[None]:
        builder = BatchBuilder(transactional=True)
        for value in values:
            builder.append(None, value, (), now_ms)
        sequence = self._sequences.get(name, 0)
        self._sequences[name] = sequence + len(values)
        data = PartitionProduceData(
            index=name.partition, records=builder.build(self._id, self._epoch, sequence)
        )
        produce = ProduceRequest(
            transactional_id=self._name,
            acks=-1,
            timeout_ms=1000,
            topic_data=[TopicProduceData(name=name.topic, partition_data=[data])],
        )
        yield from self._ask(produce, _produced_codes)

    def send_offsets(
        self, offsets: Mapping[TopicPartition, int], group: GroupMetadata
    ) -> Flow[None]:
        if group.group_id not in self._added:
            request = AddOffsetsToTxnRequest(
                transactional_id=self._name,
                producer_id=self._id,
                producer_epoch=self._epoch,
                group_id=group.group_id,
            )
            yield from self._ask(request, lambda answer: [answer.error_code])
            self._added.add(group.group_id)
        topics: dict[str, list[TxnOffsetCommitRequestPartition]] = {}
        for name, offset in offsets.items():
            topics.setdefault(name.topic, []).append(
                TxnOffsetCommitRequestPartition(
                    partition_index=name.partition, committed_offset=offset
                )
            )
        commit = TxnOffsetCommitRequest(
            transactional_id=self._name,
            group_id=group.group_id,
            producer_id=self._id,
            producer_epoch=self._epoch,
            generation_id=group.generation_id,
            member_id=group.member_id,
            topics=[
                TxnOffsetCommitRequestTopic(name=topic, partitions=partitions)
                for topic, partitions in topics.items()
            ],
        )
        yield from self._ask(commit, _offset_codes)

    def end(self, *, committed: bool) -> Flow[None]:
        if not self._added:
            return
        request = EndTxnRequest(
            transactional_id=self._name,
            producer_id=self._id,
            producer_epoch=self._epoch,
            committed=committed,
        )
        yield from self._ask(request, lambda answer: [answer.error_code])
        self._added = set()

    def _ask(self, request: Message, codes: Callable[[Any], list[int]]) -> Flow[Any]:
        """Send a request until its response has no retriable error."""
        backoff = self._state.backoff()
        while True:
            try:
                answer = yield Call(request=request, max_version=12)
            except TransportError as error:
                yield backoff.after(error)
                continue
            failed = [ErrorCode(code) for code in codes(answer) if code]
            if not failed:
                return answer
            if not PASSING.issuperset(failed):
                _refuse(failed)
            yield backoff.after(ApiError.for_code(failed[0]))


def _refuse(codes: list[ErrorCode]) -> NoReturn:
    raise ApiError.for_code(next(code for code in codes if code not in PASSING))


def _added_codes(answer: Any) -> list[int]:
    topics = answer.results_by_topic_v3_and_below
    return [part.partition_error_code for topic in topics for part in topic.results_by_partition]


def _produced_codes(answer: Any) -> list[int]:
    return [part.error_code for topic in answer.responses for part in topic.partition_responses]


def _offset_codes(answer: Any) -> list[int]:
    return [part.error_code for topic in answer.topics for part in topic.partitions]
