"""ListTransactions: filters by state, producer, duration and pattern, for ids in every state."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from headrace.protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
)
from headrace.protocol.messages.describe_transactions import DescribeTransactionsRequest
from headrace.protocol.messages.end_txn import EndTxnRequest
from headrace.protocol.messages.init_producer_id import (
    InitProducerIdRequest,
    InitProducerIdResponse,
)
from headrace.protocol.messages.list_transactions import ListTransactionsRequest
from tests.conformance.differential.pair import Pair, Scenario, Scenarios
from tests.conformance.differential.peer import Peer

pytestmark = pytest.mark.java
scenarios = Scenarios()

HOUR_MS = 3_600_000
ENDED = {"listed.committed": True, "listed.aborted": False}
NAMES = ["listed.empty", "listed.open", *ENDED]
PATTERNS = (
    *("listed.*", "listed", "open", ".*open", "^listed\\.(open|empty)$", "(?i)LISTED.*", "nobody"),
    *("listed\\.[a-z]{0,900}", "(", "*", "[a", "a{1001}", "(?=x)", "(a)\\1", "x" * 900),
    *("(?P<a>listed).*", "\\p{L}+\\.open", "listed\\.open\\z", "\\Qlisted.open\\E"),
)


@scenarios.mark()
def test_headrace_lists_transactions_as_kafka_does(pair: Pair, scenario: Scenario) -> None:
    pair.compare(scenario)


def begin(peer: Peer, name: str) -> InitProducerIdResponse:
    request = InitProducerIdRequest(
        transactional_id=name, transaction_timeout_ms=60_000, producer_id=-1, producer_epoch=-1
    )
    answers: list[InitProducerIdResponse] = []

    def is_made() -> bool:
        answers.append(peer.quiet(request, 4))
        return not answers[-1].error_code

    peer.wait_for("made", is_made)
    return answers[-1]


def add(peer: Peer, topic: str, name: str, producer: InitProducerIdResponse) -> None:
    request = AddPartitionsToTxnRequest(
        v3_and_below_transactional_id=name,
        v3_and_below_producer_id=producer.producer_id,
        v3_and_below_producer_epoch=producer.producer_epoch,
        v3_and_below_topics=[AddPartitionsToTxnTopic(name=topic, partitions=[0])],
    )
    (result,) = peer.quiet(request, 3).results_by_topic_v3_and_below
    assert result.results_by_partition[0].partition_error_code == 0


def end(peer: Peer, name: str, producer: InitProducerIdResponse, *, committed: bool) -> None:
    request = EndTxnRequest(
        transactional_id=name,
        producer_id=producer.producer_id,
        producer_epoch=producer.producer_epoch,
        committed=committed,
    )
    assert peer.quiet(request, 3).error_code == 0
    describe = DescribeTransactionsRequest(transactional_ids=[name])

    def state() -> str:
        found: str = peer.quiet(describe).transaction_states[0].transaction_state
        return found

    peer.wait_for("ended", lambda: state().startswith("Complete"))


def show(
    peer: Peer, label: str, producers: Sequence[int], request: ListTransactionsRequest, version: int
) -> None:
    """Note the listed transactions of these producers; other tests have made others."""
    answer = peer.quiet(request, version)
    answer.transaction_states = sorted(
        (found for found in answer.transaction_states if found.producer_id in producers),
        key=lambda found: found.transactional_id,
    )
    peer.note_answer(f"{label} v{version}", answer)


@scenarios
def transactions_listed(peer: Peer) -> None:
    peer.create("listed")
    peer.await_transactions()
    producers = {name: begin(peer, name) for name in NAMES}
    for name in NAMES[1:]:
        add(peer, "listed", name, producers[name])
    for name, committed in ENDED.items():
        end(peer, name, producers[name], committed=committed)
    ids = [each.producer_id for each in producers.values()]
    for version in peer.range_of(ListTransactionsRequest):
        show(peer, "all", ids, ListTransactionsRequest(), version)
        for states in (["Ongoing"], ["Empty", "CompleteCommit"], ["Nonsense"], ["Empty", "x"], []):
            request = ListTransactionsRequest(state_filters=states)
            show(peer, f"states {states}", ids, request, version)
        for wanted in ([ids[1]], [ids[0], ids[3]], [10**15], [-1]):
            request = ListTransactionsRequest(producer_id_filters=wanted)
            places = [ids.index(each) if each in ids else -1 for each in wanted]
            show(peer, f"producers {places}", ids, request, version)
    for version in peer.range_of(ListTransactionsRequest, since=1):
        for duration in (-5, -1, HOUR_MS, 2**63 - 1):
            request = ListTransactionsRequest(duration_filter=duration)
            show(peer, f"for {duration} ms", ids, request, version)
        both = ListTransactionsRequest(state_filters=["Empty"], duration_filter=HOUR_MS)
        show(peer, "for an hour, empty", ids, both, version)
    for version in peer.range_of(ListTransactionsRequest, since=2):
        for pattern in (None, "", *PATTERNS):
            request = ListTransactionsRequest(transactional_id_pattern=pattern)
            shown = pattern if pattern is None else pattern[:30]
            show(peer, f"pattern {shown}", ids, request, version)
        wrong = ListTransactionsRequest(state_filters=["x"], transactional_id_pattern="(")
        show(peer, "a bad pattern, and a bad state", ids, wrong, version)
        both = ListTransactionsRequest(
            state_filters=["Empty"], transactional_id_pattern=".*open", duration_filter=HOUR_MS
        )
        show(peer, "all filters", ids, both, version)


@scenarios
def transactions_listed_by_duration(peer: Peer) -> None:
    """A transaction that ended is listed if it began longer ago than the duration."""
    peer.create("duration")
    peer.await_transactions()
    name = "duration.committed"
    producer = begin(peer, name)
    add(peer, "duration", name, producer)
    end(peer, name, producer, committed=True)
    request = ListTransactionsRequest(duration_filter=5)
    peer.wait_for(
        "listed",
        lambda: (
            name in {each.transactional_id for each in peer.quiet(request, 1).transaction_states}
        ),
    )
    show(peer, "for 5 ms", [producer.producer_id], request, 1)
