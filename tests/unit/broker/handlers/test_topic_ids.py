"""Fetch and Produce with topic ids (KIP-516)."""

from __future__ import annotations

import pytest

from headrace.broker.context import CloseConnection
from headrace.errors import ErrorCode
from headrace.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from headrace.protocol.messages.fetch import FetchRequest, FetchTopic, ForgottenTopic, ReplicaState
from tests.fixtures.broker_harness import (
    BrokerHarness,
    batch,
    fetch_request,
    produce_request,
    values,
    with_ids,
)

FETCH_VERSIONS = range(13, 18)
UNKNOWN_ID = ErrorCode.UNKNOWN_TOPIC_ID
ID_NOBODY_HAS = b"\x05" * 16


@pytest.fixture
def harness() -> BrokerHarness:
    made = BrokerHarness()
    made.create_topic("t", partitions=2)
    made.create_topic("u")
    return made


def id_of(harness: BrokerHarness, name: str) -> bytes:
    return harness.broker.services.topics.require(name).topic_id


def delete(harness: BrokerHarness, name: str) -> None:
    (deleted,) = harness.call(DeleteTopicsRequest(topics=[DeleteTopicState(name=name)])).responses
    assert deleted.error_code == 0


def create_again(harness: BrokerHarness, name: str) -> None:
    delete(harness, name)
    harness.create_topic(name, partitions=2)


def errors(response) -> list[int]:
    return [part.error_code for topic in response.responses for part in topic.partitions]


def fetched(harness: BrokerHarness, request: FetchRequest, version: int = 17):
    return harness.call(request, version)


# Fetch


@pytest.mark.parametrize("version", FETCH_VERSIONS)
def test_a_fetch_by_id_returns_the_records_and_the_id(harness, version):
    harness.produce("t", b"a")
    response = fetched(harness, with_ids(harness, fetch_request(("t", 0, 0))), version)
    (topic,) = response.responses
    assert (topic.topic, topic.topic_id) == ("", id_of(harness, "t"))
    assert values(topic.partitions[0].records) == [b"a"]


@pytest.mark.parametrize("version", FETCH_VERSIONS)
def test_an_unknown_id_is_an_error_of_its_own(harness, version):
    harness.produce("t", b"a")
    request = with_ids(harness, fetch_request(("u", 0, 0), ("t", 0, 0), max_wait_ms=60_000))
    request.topics[0].topic_id = ID_NOBODY_HAS
    response = harness.send(request, version).response
    assert [topic.topic_id for topic in response.responses] == [ID_NOBODY_HAS, id_of(harness, "t")]
    assert errors(response) == [UNKNOWN_ID, 0]
    assert values(response.responses[1].partitions[0].records) == [b"a"]


def test_the_zero_id_is_unknown(harness):
    request = with_ids(harness, fetch_request(("t", 0, 0)))
    request.topics[0].topic_id = bytes(16)
    assert errors(fetched(harness, request)) == [UNKNOWN_ID]


def test_the_id_of_a_deleted_topic_does_not_find_the_topic_that_has_its_name_now(harness):
    request = with_ids(harness, fetch_request(("t", 0, 0)))
    create_again(harness, "t")
    harness.produce("t", b"new")
    assert errors(fetched(harness, request)) == [UNKNOWN_ID]
    assert errors(fetched(harness, with_ids(harness, request))) == [0]


def test_a_partition_of_one_id_that_occurs_twice_is_read_once(harness):
    harness.produce("t", b"a")
    harness.produce("t", b"b")
    request = with_ids(harness, fetch_request(("t", 0, 0), ("u", 0, 0), ("t", 0, 1)))
    response = fetched(harness, request)
    assert [topic.topic_id for topic in response.responses] == [
        id_of(harness, "t"),
        id_of(harness, "u"),
    ]
    assert values(response.responses[0].partitions[0].records) == [b"b"]


@pytest.mark.parametrize("again", [False, True])
def test_a_waiting_fetch_by_id_is_answered_when_the_topic_is_deleted(harness, again):
    request = with_ids(harness, fetch_request(("t", 0, 0), max_wait_ms=60_000))
    waiting = harness.send(request)
    assert waiting.waits
    delete(harness, "t")
    if again:
        harness.create_topic("t")
    assert errors(waiting.response) == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]


def test_a_fetch_in_steps_notices_that_a_topic_was_created_again(harness):
    harness.create_topic("many", partitions=1_200)
    wanted = [*(("many", index, 0) for index in range(1_200)), ("t", 0, 0)]
    pending = harness.send(with_ids(harness, fetch_request(*wanted, max_wait_ms=0)))
    assert pending.waits, "more partitions than are read in a step"
    create_again(harness, "t")
    while harness.step():
        pass
    assert errors(pending.response) == [0] * 1_200 + [UNKNOWN_ID]


@pytest.mark.parametrize("version", [15, 17])
def test_a_follower_with_a_replica_state_is_refused(harness, version):
    request = with_ids(harness, fetch_request(("t", 0, 0), max_wait_ms=60_000))
    request.replica_state = ReplicaState(replica_id=2, replica_epoch=1)
    assert errors(harness.send(request, version).response) == [ErrorCode.NOT_LEADER_OR_FOLLOWER]


def test_a_replica_state_without_a_replica_is_a_consumers(harness):
    harness.produce("t", b"a")
    request = with_ids(harness, fetch_request(("t", 0, 0)))
    request.replica_state = ReplicaState(replica_id=-1)
    assert errors(fetched(harness, request)) == [0]


# Sessions


class Reader:
    """A client with a fetch session."""

    def __init__(self, harness: BrokerHarness, version: int = 13) -> None:
        self.harness = harness
        self.version = version
        self.session_id = 0
        self.epoch = 0

    def send(self, *topics: FetchTopic, forget: tuple[bytes, ...] = (), version: int | None = None):
        forgotten = [ForgottenTopic(topic_id=topic_id, partitions=[0]) for topic_id in forget]
        request = fetch_request(
            max_wait_ms=0,
            session_id=self.session_id,
            session_epoch=self.epoch,
            forgotten_topics_data=forgotten,
        )
        request.topics = list(topics)
        return self.harness.call(request, self.version if version is None else version)

    def fetch(self, *wanted: tuple[str, int, int], **options):
        topics = with_ids(self.harness, fetch_request(*wanted)).topics
        response = self.send(*topics, **options)
        assert response.error_code == 0
        self.session_id = response.session_id
        self.epoch += 1
        return response


@pytest.mark.parametrize("version", FETCH_VERSIONS)
def test_a_session_remembers_ids(harness, version):
    reader = Reader(harness, version)
    reader.fetch(("t", 0, 0), ("u", 0, 0))
    assert reader.fetch().responses == []
    harness.produce("u", b"a")
    (topic,) = reader.fetch().responses
    assert topic.topic_id == id_of(harness, "u")
    assert values(topic.partitions[0].records) == [b"a"]
    reader.fetch(("u", 0, 1), forget=(id_of(harness, "t"),))
    harness.produce("t", b"b")
    assert reader.fetch().responses == []


@pytest.mark.parametrize(("begins", "continues"), [(12, 13), (13, 12)])
def test_a_session_uses_either_names_or_ids(harness, begins, continues):
    reader = Reader(harness, begins)
    reader.fetch(("t", 0, 0))
    response = reader.send(version=continues)
    assert response.error_code == ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR
    assert reader.fetch().error_code == 0, "the session is not harmed"


def test_a_topic_that_is_deleted_in_a_session_is_unknown(harness):
    reader = Reader(harness)
    reader.fetch(("t", 0, 0), ("u", 0, 0))
    gone = id_of(harness, "t")
    delete(harness, "t")
    (topic,) = reader.fetch().responses
    assert topic.topic_id == gone
    assert errors(reader.fetch()) == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION], "errors are repeated"
    harness.create_topic("t")
    harness.produce("t", b"new")
    assert errors(reader.fetch()) == [ErrorCode.INCONSISTENT_TOPIC_ID]
    assert reader.fetch(forget=(gone,)).responses == []


def test_an_id_that_a_session_never_found_is_unknown(harness):
    reader = Reader(harness)
    reader.fetch(("u", 0, 0))
    topic = fetch_request(("t", 0, 0)).topics[0]
    topic.topic_id = ID_NOBODY_HAS
    response = reader.send(topic)
    reader.epoch += 1
    assert errors(response) == errors(reader.fetch()) == [UNKNOWN_ID]


# Produce


def produced(response):
    (topic,) = response.responses
    return [(part.error_code, part.base_offset) for part in topic.partition_responses]


def test_a_produce_by_id_returns_the_id(harness):
    request = with_ids(harness, produce_request("t", 0, batch(b"a")))
    response = harness.call(request, 13)
    assert (response.responses[0].name, response.responses[0].topic_id) == ("", id_of(harness, "t"))
    assert produced(response) == [(0, 0)]
    assert values(harness.fetch("t", 0).records) == [b"a"]


def test_a_produce_to_an_unknown_id_is_refused(harness):
    request = with_ids(harness, produce_request("t", 0, batch(b"a")))
    request.topic_data[0].topic_id = ID_NOBODY_HAS
    assert produced(harness.call(request, 13)) == [(UNKNOWN_ID, -1)]
    request.acks = 0
    with pytest.raises(CloseConnection, match="UNKNOWN_TOPIC_ID"):
        harness.send(request, 13)


def test_a_produce_with_the_id_of_a_deleted_topic_does_not_append_to_the_topic_with_its_name(
    harness,
):
    request = with_ids(harness, produce_request("t", 0, batch(b"a")))
    create_again(harness, "t")
    assert produced(harness.call(request, 13)) == [(UNKNOWN_ID, -1)]
    assert values(harness.fetch("t", 0).records) == []


def test_a_produce_in_steps_does_not_append_to_a_topic_that_was_created_meanwhile(harness):
    harness.create_topic("many", partitions=600)
    request = with_ids(harness, produce_request("many", 0, batch(b"a")))
    first = request.topic_data[0].partition_data[0]
    for index in range(1, 600):
        data = type(first)(index=index, records=first.records)
        request.topic_data[0].partition_data.append(data)
    request.topic_data += with_ids(harness, produce_request("t", 0, batch(b"b"))).topic_data
    pending = harness.send(request, 13)
    assert harness.broker.services.steps, "more first batches than one step appends"
    create_again(harness, "t")
    while not pending.done and (harness.step() or harness.sync()):
        pass
    *_, last = pending.response.responses
    assert last.partition_responses[0].error_code == UNKNOWN_ID
    assert values(harness.fetch("t", 0).records) == []
