"""Transactions, request by request: retries, producers with other ids and epochs, repeated and late ends.

A sequence is a line of words. Each is sent to both brokers in the classic protocol and in that of transaction
version 2 (KIP-890), where the end of a transaction raises the epoch. A second word says who sends it: `old` has the
epoch before, `newer` the next one, `foreign` another producer id, `twice` the same sequence number again, `gap` one too
high.
"""

from __future__ import annotations

import pytest

from headrace.errors import ErrorCode
from headrace.protocol.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from headrace.protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)
from headrace.protocol.messages.api_versions import ApiVersionsRequest
from headrace.protocol.messages.describe_transactions import DescribeTransactionsRequest
from headrace.protocol.messages.end_txn import EndTxnRequest
from headrace.protocol.messages.find_coordinator import FindCoordinatorRequest
from headrace.protocol.messages.init_producer_id import InitProducerIdRequest
from headrace.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
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
from headrace.protocol.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)
from headrace.records.builder import BatchBuilder
from tests.conformance.differential.pair import Pair
from tests.conformance.differential.peer import Peer
from tests.conformance.differential.requests import fetch, wanted

pytestmark = pytest.mark.java
NOT_YET = {
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.CONCURRENT_TRANSACTIONS,
}
CLASSIC = {"init": 4, "add": 3, "group": 3, "offset": 3, "end": 3, "send": 9}
ABORTABLE = {"init": 5, "add": 3, "group": 4, "offset": 4, "end": 4, "send": 11}
BUMPING = {"init": 5, "add": 3, "group": 4, "offset": 5, "end": 5, "send": 12}
PROTOCOLS = {"classic": CLASSIC, "abortable": ABORTABLE, "bumping": BUMPING}
FOREIGN = 1_000_000

SEQUENCES = {
    "commit": "init, add, send, send, commit, over, commit, commit old, abort, over, send",
    "abort": "init, add, send, abort, over, abort, over, abort old, commit old, over, commit, over",
    "empty": "init, commit, abort, over, commit, over, abort, over, commit old, abort old",
    "not-added": "init, send, offset, commit, over, send, commit, over",
    "twice": "init, add, send, send twice, commit, over, send twice, add, send, send gap, abort, over",
    "stale": "init, add, send, init, init, send, add, send, commit",
    "gap": "init, add, send gap, send, send gap, commit, over",
    "others-begin": "init, add old, add newer, add foreign, send old, send newer, send foreign, "
    "group old, group newer, group foreign, offset old, offset newer, offset foreign",
    "others-end": "init, add, send, commit old, commit newer, commit foreign, abort foreign, send, commit, over, "
    "abort foreign, commit newer, commit foreign",
    "late-end": "init, add, send, commit, over, add, send, commit old, abort old, state, commit, over",
    "late-abort": "init, add, send, abort, over, add, send, abort old, commit old, state, commit, over",
    "late-send": "init, add, send, commit, over, send old, add, send, send old, commit, over, send old",
    "fenced": "init, add, send, init again, over, init, send old, add old, commit old, group old, offset old, "
    "abort old, add, send, commit, over, init-as old, init-as newer, init-as foreign",
    "goes-on": "init, init-as, init-as old, add, send, init-as, over, init-as, init-as, commit, over",
    "after-end": "init, add, send, commit, over, init-as, init-as old, add, send, init-as old",
    "offsets": "init, group, offset, commit, over, offset, group, offset, abort, over, offset old, commit, over",
    "markers": "init, add, send, mark, commit, over, mark, mark newer, mark old, mark foreign, send, abort, over",
    "mixed": "init, send, commit, over, classic, add, send, commit, over, commit old, commit, bumping, commit old, "
    "send, commit, over, classic, add, send, init again, over, init, bumping, send, abort, over",
    "brokers": "init, verify, batched, verify, verify old, batched old, batched foreign, batched nowhere, commit, "
    "over, verify, batched",
}


class Producer:
    """A producer of one transactional id on one broker, request by request."""

    def __init__(self, peer: Peer, topic: str, protocol: str) -> None:
        self.peer, self.topic = peer, topic
        self.versions = PROTOCOLS[protocol]
        self.id = self.epoch = -1
        self.sequence = 0

    def say(self, word: str, who: str) -> None:
        """Send one request of a sequence, and note the answer."""
        if word in PROTOCOLS:
            self.versions = PROTOCOLS[word]
            return
        label = f"{word} {who}".strip()
        {
            "init": self.init,
            "init-as": self.init_as,
            "add": self.add,
            "send": self.send,
            "group": self.group,
            "offset": self.offset,
            "commit": self.end,
            "abort": self.end,
            "over": self.over,
            "state": self.over,
            "mark": self.mark,
            "verify": self.batched,
            "batched": self.batched,
        }[word](label, who)

    def me(self, who: str) -> tuple[int, int]:
        """Return the producer id and epoch of the sender."""
        if who == "foreign":
            return self.id + FOREIGN, self.epoch
        return self.id, self.epoch + {"old": -1, "newer": 1}.get(who, 0)

    def is_now(self, producer_id: int, epoch: int) -> None:
        if (producer_id, epoch) != (self.id, self.epoch):
            self.id, self.epoch, self.sequence = producer_id, epoch, 0

    def init(self, label: str, who: str) -> None:
        request = InitProducerIdRequest(transactional_id=self.topic, transaction_timeout_ms=60_000)
        version = self.versions["init"]
        if not who:
            self.peer.wait_for(
                "ready", lambda: self.peer.quiet(request, version).error_code not in NOT_YET
            )
        answer = self.peer.ask(label, request, version)
        if answer.error_code == 0:
            self.is_now(answer.producer_id, answer.producer_epoch)

    def init_as(self, label: str, who: str) -> None:
        producer_id, epoch = self.me(who)
        request = InitProducerIdRequest(
            transactional_id=self.topic,
            transaction_timeout_ms=60_000,
            producer_id=producer_id,
            producer_epoch=epoch,
        )
        answer = self.peer.ask(label, request, self.versions["init"])
        if answer.error_code == 0:
            self.is_now(answer.producer_id, answer.producer_epoch)

    def add(self, label: str, who: str) -> None:
        producer_id, epoch = self.me(who)
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self.topic,
            v3_and_below_producer_id=producer_id,
            v3_and_below_producer_epoch=epoch,
            v3_and_below_topics=[AddPartitionsToTxnTopic(name=self.topic, partitions=[0])],
        )
        self.peer.ask(label, request, self.versions["add"])

    def batched(self, label: str, who: str) -> None:
        producer_id, epoch = self.me(who)
        topic = "nowhere" if who == "nowhere" else self.topic
        transaction = AddPartitionsToTxnTransaction(
            transactional_id=self.topic,
            producer_id=producer_id,
            producer_epoch=epoch,
            verify_only=label.startswith("verify"),
            topics=[AddPartitionsToTxnTopic(name=topic, partitions=[0])],
        )
        self.peer.ask(label, AddPartitionsToTxnRequest(transactions=[transaction]), 5)

    def send(self, label: str, who: str) -> None:
        producer_id, epoch = self.me(who)
        sequence = self.sequence + {"twice": -1, "gap": 1}.get(who, 0)
        builder = BatchBuilder(transactional=True)
        builder.append(None, label.encode())
        data = PartitionProduceData(
            index=0, records=builder.build(producer_id, epoch, max(0, sequence))
        )
        request = ProduceRequest(
            transactional_id=self.topic,
            acks=-1,
            timeout_ms=10_000,
            topic_data=[TopicProduceData(name=self.topic, partition_data=[data])],
        )
        answer = self.peer.ask(label, request, self.versions["send"])
        code = answer.responses[0].partition_responses[0].error_code
        if not who and code == 0:
            self.sequence += 1

    def group(self, label: str, who: str) -> None:
        producer_id, epoch = self.me(who)
        request = AddOffsetsToTxnRequest(
            transactional_id=self.topic,
            producer_id=producer_id,
            producer_epoch=epoch,
            group_id=self.topic,
        )
        self.peer.ask(label, request, self.versions["group"])

    def offset(self, label: str, who: str) -> None:
        producer_id, epoch = self.me(who)
        part = TxnOffsetCommitRequestPartition(partition_index=0, committed_offset=7)
        request = TxnOffsetCommitRequest(
            transactional_id=self.topic,
            group_id=self.topic,
            producer_id=producer_id,
            producer_epoch=epoch,
            generation_id=-1,
            topics=[TxnOffsetCommitRequestTopic(name=self.topic, partitions=[part])],
        )
        self.peer.ask(label, request, self.versions["offset"])

    def end(self, label: str, who: str) -> None:
        producer_id, epoch = self.me(who)
        request = EndTxnRequest(
            transactional_id=self.topic,
            producer_id=producer_id,
            producer_epoch=epoch,
            committed=label.startswith("commit"),
        )
        version = self.versions["end"]
        answer = self.peer.ask(label, request, version)
        if answer.error_code == 0 and version >= 5:
            self.is_now(answer.producer_id, answer.producer_epoch)

    def mark(self, label: str, who: str) -> None:
        """Send a marker as a client; all clients have that permission here."""
        producer_id, epoch = self.me(who)
        marker = WritableTxnMarker(
            producer_id=producer_id,
            producer_epoch=epoch,
            transaction_result=False,
            topics=[WritableTxnMarkerTopic(name=self.topic, partition_indexes=[0])],
            coordinator_epoch=0,
            transaction_version=2 if self.versions is BUMPING else 0,
        )
        self.peer.ask(label, WriteTxnMarkersRequest(markers=[marker]), 2)

    def over(self, label: str, who: str) -> None:
        """Wait until the transaction is no longer being completed, and note its state."""
        request = DescribeTransactionsRequest(transactional_ids=[self.topic])

        def state() -> str:
            found = self.peer.quiet(request).transaction_states[0]
            return str(found.transaction_state)

        self.peer.wait_for("over", lambda: not state().startswith("Prepare"))
        found = self.peer.quiet(request).transaction_states[0]
        found.transaction_start_time_ms = 0
        self.peer.note_answer(label, found)


def scenario_name(name: str, protocol: str) -> str:
    """Return the name of a sequence in a protocol, as in the list of deliberate differences."""
    return f"transactions_{name}_{protocol}"


def play(peer: Peer, name: str, protocol: str) -> None:
    topic = f"{name}-{protocol}"
    peer.create(topic)
    for kind in (0, 1):
        find = FindCoordinatorRequest(key_type=kind, coordinator_keys=[topic])
        peer.wait_for(
            "coordinated",
            lambda find=find: not peer.quiet(find, 4).coordinators[0].error_code,  # type: ignore[misc]  # one a loop
        )
    producer = Producer(peer, topic, protocol)
    for number, words in enumerate(SEQUENCES[name].split(", ")):
        word, _, who = words.partition(" ")
        seen = len(peer.steps)
        producer.say(word, who)
        for step in peer.steps[seen:]:
            step.label = f"{number} {step.label}"
    producer.over("at the end", "")
    for isolation in (0, 1):
        asked = fetch(topic, 0, wanted(0, 0), isolation_level=isolation)
        peer.ask(f"what is there at level {isolation}", asked, 11)
    offsets = OffsetFetchRequestTopics(name=topic, partition_indexes=[0])
    group = OffsetFetchRequestGroup(group_id=topic, topics=[offsets])
    peer.ask("what is committed", OffsetFetchRequest(groups=[group], require_stable=True), 8)


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("name", SEQUENCES)
def test_headrace_coordinates_transactions_as_kafka_does(
    pair: Pair, name: str, protocol: str
) -> None:
    def scenario(peer: Peer) -> None:
        play(peer, name, protocol)

    scenario.__name__ = scenario_name(name, protocol)
    pair.compare(scenario)


def test_the_finalized_level_of_the_feature_is_the_same(pair: Pair) -> None:
    def scenario(peer: Peer) -> None:
        answer = peer.quiet(
            ApiVersionsRequest(client_software_name="x", client_software_version="1"), 4
        )
        for found in answer.supported_features:
            if found.name == "transaction.version":
                peer.note("supported", [found.min_version, found.max_version])
        for final in answer.finalized_features:
            if final.name == "transaction.version":
                peer.note("finalized", [final.min_version_level, final.max_version_level])

    pair.compare(scenario)
