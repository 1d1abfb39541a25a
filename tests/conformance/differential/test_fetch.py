"""Fetch: limits, waiting, offsets, epochs and sessions."""

from __future__ import annotations

import time

import pytest

from headrace.protocol.messages.fetch import FetchRequest, FetchTopic, ForgottenTopic
from tests.conformance.differential.batches import batch
from tests.conformance.differential.pair import Pair, Scenario, Scenarios
from tests.conformance.differential.peer import Peer
from tests.conformance.differential.requests import fetch, wanted

pytestmark = pytest.mark.java
scenarios = Scenarios()


@scenarios.mark()
def test_headrace_answers_fetch_requests_as_kafka_does(pair: Pair, scenario: Scenario) -> None:
    pair.compare(scenario)


def filled(peer: Peer, topic: str, partitions: int = 1) -> None:
    """Create a topic with five batches of two records, about 1 KiB each, in every partition."""
    peer.create(topic, partitions)
    for partition in range(partitions):
        for number in range(5):
            values = [bytes([65 + number]) * 450, bytes([97 + number]) * 450]
            peer.produce(topic, batch(*values), partition)


@scenarios
def fetch_every_version(peer: Peer) -> None:
    filled(peer, "fetch-versions")
    for version in peer.range_of(FetchRequest):

        def ask(label: str, request: FetchRequest, version: int = version) -> None:
            peer.ask(label, peer.by_id(request), version)

        for offset in (0, 1, 2, 9, 10, 11, -1, -5, 2**62):
            ask(f"offset {offset}", fetch("fetch-versions", offset))
        ask("read committed", fetch("fetch-versions", 3, isolation_level=1))
        ask("isolation 2", fetch("fetch-versions", 3, isolation_level=2))
        ask("unknown topic", fetch("fetch-nowhere"))
        ask("unknown partition", fetch("fetch-versions", 0, wanted(0, 7), wanted(0, -1)))
        ask("bad name", fetch("a/b"))


@scenarios
def fetch_limits(peer: Peer) -> None:
    topic = "fetch-limits"
    filled(peer, topic, 3)
    size = len(batch(b"A" * 450, b"a" * 450))
    for limit in (0, 1, -1, size - 1, size, size + 1, 2 * size - 1, 2 * size, 3 * size):
        peer.ask(f"partition bytes {limit}", fetch(topic, 0, wanted(0, max_bytes=limit)), 11)
        peer.ask(f"bytes {limit}", fetch(topic, max_bytes=limit), 11)
        several = [wanted(0, index) for index in range(3)]
        peer.ask(f"three partitions, bytes {limit}", fetch(topic, 0, *several, max_bytes=limit), 11)
        several = [wanted(0, index, max_bytes=limit) for index in range(3)]
        peer.ask(f"three partitions, partition bytes {limit}", fetch(topic, 0, *several), 11)
    first_empty = [wanted(10, 0), wanted(0, 1), wanted(0, 2)]
    peer.ask("the first is at its end", fetch(topic, 0, *first_empty, max_bytes=10), 11)
    first_broken = [wanted(99, 0), wanted(0, 1), wanted(0, 2)]
    peer.ask("the first is out of range", fetch(topic, 0, *first_broken, max_bytes=10), 11)
    for minimum in (-1, 0, 1, size, 2**31 - 1):
        peer.ask(f"min bytes {minimum}", fetch(topic, 0, min_bytes=minimum, max_wait_ms=1), 11)


@scenarios
def fetch_duplicates(peer: Peer) -> None:
    topic = "fetch-duplicates"
    filled(peer, topic, 2)
    peer.ask("a partition twice", fetch(topic, 0, wanted(0), wanted(4)), 11)
    twice = fetch(topic, 0, wanted(0, 0))
    twice.topics.append(FetchTopic(topic=topic, partitions=[wanted(4, 1)]))
    peer.ask("a topic twice", twice, 11)
    peer.ask("no partitions", FetchRequest(replica_id=-1, max_wait_ms=0, session_epoch=-1), 11)
    empty = FetchRequest(
        replica_id=-1, max_wait_ms=0, session_epoch=-1, topics=[FetchTopic(topic=topic)]
    )
    peer.ask("a topic without partitions", empty, 11)


@scenarios
def fetch_waits(peer: Peer) -> None:
    topic = "fetch-waits"
    filled(peer, topic)
    for wait in (-1, 0, 1, 50):
        peer.ask(f"wait {wait}", fetch(topic, 10, min_bytes=1, max_wait_ms=wait), 11)
    peer.send("woken", fetch(topic, 10, min_bytes=1, max_wait_ms=15_000), 11, on="reader")
    peer.produce(topic, batch(b"news"))
    peer.answer(on="reader")
    peer.send("an error does not wait", fetch(topic, 99, min_bytes=1, max_wait_ms=15_000), 11)
    peer.answer()
    peer.ask("nowhere does not wait", fetch("fetch-nowhere", min_bytes=1, max_wait_ms=15_000), 11)
    mixed = fetch(topic, 0, wanted(11), wanted(0, 5), min_bytes=1, max_wait_ms=600)
    began = time.monotonic()
    peer.ask("one unknown partition of two", mixed, 11)
    peer.note("one unknown partition of two waits", time.monotonic() - began > 0.5)


@scenarios
def fetch_epochs(peer: Peer) -> None:
    topic = "fetch-epochs"
    filled(peer, topic)
    for epoch in (-1, 0, 1, 99, -2):
        for version in (9, 11, 12):
            here = wanted(0, current_leader_epoch=epoch)
            peer.ask(f"current epoch {epoch}", fetch(topic, 0, here), version)
    for epoch in (-1, 0, 1, 99, -2):
        for offset in (0, 4, 10, 11):
            here = wanted(offset, last_fetched_epoch=epoch)
            peer.ask(f"last fetched epoch {epoch} at {offset}", fetch(topic, 0, here), 12)


@scenarios
def fetch_as_a_follower(peer: Peer) -> None:
    filled(peer, "fetch-follower")
    for replica in (-2, 0, 1, 7):
        peer.ask(f"replica {replica}", fetch("fetch-follower", replica_id=replica), 11)


@scenarios
def fetch_sessions(peer: Peer) -> None:
    topic = "fetch-sessions"
    filled(peer, topic, 2)
    for session in (
        (0, -1),
        (-1, -1),
        (5, -1),
        (0, 5),
        (12345, 1),
        (-1, 0),
        (12345, 0),
        (0, -2),
        (7, -3),
    ):
        peer.ask(f"session {session}", fetch(topic, 8, session=session), 11)
    for version in range(7, 13):
        peer.ask("create", fetch(topic, 8, session=(0, 0)), version)


@scenarios
def fetch_session_life(peer: Peer) -> None:
    topic = "fetch-session-life"
    filled(peer, topic, 2)
    both = [wanted(8, 0), wanted(8, 1)]
    created = peer.ask("create", fetch(topic, 0, *both, session=(0, 0)), 11)
    if not created.session_id:
        return

    def again(label: str, epoch: int, *partitions, forget: tuple[int, ...] = ()) -> None:
        request = fetch(topic, 0, *partitions, session=(created.session_id, epoch))
        if not partitions:
            request.topics = []
        if forget:
            request.forgotten_topics_data = [ForgottenTopic(topic=topic, partitions=list(forget))]
        peer.ask(label, request, 11)

    again("nothing changed", 1)
    again("one moves", 2, wanted(10, 0))
    peer.produce(topic, batch(b"news"), 0)
    again("news", 3)
    again("an unknown one is added", 4, wanted(0, 9))
    again("still unknown", 5)
    again("one is forgotten", 6, forget=(1,))
    again("a wrong epoch", 9)
    again("the right one", 7)
    again("closed", -1)
    again("after the end", 8)


@scenarios
def fetch_by_id(peer: Peer) -> None:
    topic = "fetch-by-id"
    filled(peer, topic)
    old = peer.by_id(fetch(topic, 8))
    zero = fetch(topic, 8)
    for version in (13, 17):
        peer.ask("id", old, version)
        peer.ask("zero id", zero, version)
        peer.ask("unknown id", peer.by_id(fetch("fetch-nowhere")), version)
    peer.delete(topic)
    peer.ask("deleted", old, 17)
    filled(peer, topic)
    peer.ask("the id of the deleted topic", old, 17)
    peer.ask("the new id", peer.by_id(fetch(topic, 8)), 17)


@scenarios
def fetch_session_by_id(peer: Peer) -> None:
    topic, other = "fetch-session-by-id", "fetch-session-by-id-2"
    filled(peer, topic)
    filled(peer, other)
    created = peer.ask("create", peer.by_id(fetch(topic, 10, session=(0, 0))), 13)
    if not created.session_id:
        return

    unknown = b"\x07" * 16

    def again(label: str, epoch: int, *topics: FetchTopic, version: int = 13) -> None:
        request = fetch(topic, 0, session=(created.session_id, epoch))
        request.topics = list(topics)
        if label == "deleted":
            request.forgotten_topics_data = [ForgottenTopic(topic_id=unknown, partitions=[0])]
        peer.ask(label, request, version)

    again("nothing changed", 1)
    again("names", 2, version=12)
    again("ids", 2, version=17)
    again("a second topic", 3, *peer.by_id(fetch(other, 10)).topics)
    again("an unknown id", 4, FetchTopic(topic_id=unknown, partitions=[wanted(0)]))
    again("still unknown", 5)
    peer.delete(topic)
    again("deleted", 6)
    filled(peer, topic)
    again("created again", 7)
    by_name = peer.ask("create by names", fetch(other, 10, session=(0, 0)), 12)
    request = fetch(other, 0, session=(by_name.session_id, 1))
    request.topics = []
    peer.ask("then ids", request, 13)


@scenarios
def fetch_across_segments(peer: Peer) -> None:
    peer.create("fetch-segments", segment_bytes="1048576")
    for number in range(6):
        peer.produce("fetch-segments", batch(bytes([65 + number]) * 400_000))
    for offset in range(7):
        peer.ask(f"offset {offset}", fetch("fetch-segments", offset, max_bytes=1_000_000), 11)
