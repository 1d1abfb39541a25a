"""Fetch sessions: through the broker, then the bounds of the cache by themselves."""

from __future__ import annotations

import pytest

from headrace.broker.session import Session
from headrace.broker.waiting import fetch_sessions
from headrace.broker.waiting.fetch_sessions import EVICTION_MS, FetchSessions, next_epoch
from headrace.errors import ApiError, ErrorCode
from headrace.protocol.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsTopic,
)
from headrace.protocol.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from headrace.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from headrace.protocol.messages.fetch import (
    FetchableTopicResponse,
    FetchResponse,
    ForgottenTopic,
    PartitionData,
    ReplicaState,
)
from headrace.security.principal import Principal
from tests.fixtures.broker_harness import (
    BrokerHarness,
    CountingEntropy,
    batch,
    fetch_request,
    produce_request,
    values,
)

T0, T1, T2, U0 = ("t", 0), ("t", 1), ("t", 2), ("u", 0)


@pytest.fixture
def harness() -> BrokerHarness:
    made = BrokerHarness()
    made.create_topic("t", partitions=3)
    made.create_topic("u")
    return made


def told(response) -> dict[tuple[str, int], list[bytes | None]]:
    return {
        (topic.topic, part.partition_index): values(part.records)
        for topic in response.responses
        for part in topic.partitions
    }


def order(response) -> list[tuple[str, int]]:
    return list(told(response))


class Reader:
    """A client with a session: a full fetch first, then the changes."""

    def __init__(
        self, harness: BrokerHarness, version: int = 12, session: Session | None = None
    ) -> None:
        self.harness = harness
        self.session = Session() if session is None else session
        self.version = version
        self.session_id = 0
        self.epoch = 0

    def send(self, *wanted, forget=(), **options):
        forgotten = [ForgottenTopic(topic=topic, partitions=[index]) for topic, index in forget]
        options.setdefault("max_wait_ms", 0)
        request = fetch_request(
            *wanted,
            session_id=self.session_id,
            session_epoch=self.epoch,
            forgotten_topics_data=forgotten,
            **options,
        )
        return self.harness.send(request, self.version, session=self.session)

    def took(self, response):
        assert response.error_code == 0
        if not self.epoch:
            self.session_id = response.session_id
            assert self.session_id > 0
        else:
            assert response.session_id == self.session_id
        self.epoch += 1
        return response

    def fetch(self, *wanted, **options):
        return self.took(self.send(*wanted, **options).response)


@pytest.fixture
def reader(harness) -> Reader:
    return Reader(harness)


@pytest.mark.parametrize("version", range(7, 13))
def test_an_incremental_fetch_returns_only_changed_partitions(harness, version):
    reader = Reader(harness, version)
    assert order(reader.fetch((*T0, 0), (*T1, 0), (*U0, 0))) == [T0, T1, U0]
    assert told(reader.fetch()) == {}
    harness.produce("t", b"a", partition=1)
    assert told(reader.fetch()) == {T1: [b"a"]}
    assert told(reader.fetch((*T1, 1))) == {}
    harness.produce("u", b"b")
    assert told(reader.fetch()) == {U0: [b"b"]}


def test_records_are_sent_again_until_the_fetch_offset_advances(harness, reader):
    harness.produce("t", b"a")
    assert told(reader.fetch((*T0, 0))) == {T0: [b"a"]}
    assert told(reader.fetch()) == {T0: [b"a"]}
    assert told(reader.fetch((*T0, 1))) == {}


def test_a_high_watermark_alone_is_news(harness, reader):
    reader.fetch((*T0, 0))
    harness.produce("t", b"a")
    (part,) = reader.fetch((*T0, 1)).responses[0].partitions
    assert (part.high_watermark, bytes(part.records)) == (1, b"")
    assert told(reader.fetch()) == {}


def test_a_log_start_alone_is_news(harness, reader):
    harness.produce("t", b"a", b"b")
    reader.fetch((*T0, 2))
    delete = DeleteRecordsPartition(partition_index=0, offset=1)
    topics = [DeleteRecordsTopic(name="t", partitions=[delete])]
    harness.call(DeleteRecordsRequest(topics=topics))
    (part,) = reader.fetch().responses[0].partitions
    assert (part.log_start_offset, part.error_code) == (1, 0)
    assert told(reader.fetch()) == {}


def test_partitions_come_and_go(harness, reader):
    reader.fetch((*T0, 0))
    assert order(reader.fetch((*T1, 0))) == [T1]
    for partition in (0, 1):
        harness.produce("t", b"a", partition=partition)
    assert set(order(reader.fetch(forget=[T0]))) == {T1}
    assert order(reader.fetch((*T0, 0), forget=[T1])) == [T0]
    assert told(reader.fetch(forget=[U0, T1])) == {T0: [b"a"]}, "what is not there is no error"


def test_a_session_without_partitions_ends(harness, reader):
    reader.fetch((*T0, 0))
    pending = reader.send(forget=[T0])
    assert (pending.response.error_code, pending.response.session_id) == (0, 0)
    assert len(harness.broker.services.fetch_sessions) == 0


def test_a_session_repeats_errors_and_reports_their_end(harness, reader):
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    def errors(response):
        return [part.error_code for topic in response.responses for part in topic.partitions]

    assert errors(reader.fetch(("t", 3, 0))) == [unknown]
    assert errors(reader.fetch()) == errors(reader.fetch()) == [unknown]
    topic = CreatePartitionsTopic(name="t", count=4, assignments=None)
    harness.call(CreatePartitionsRequest(topics=[topic]))
    assert errors(reader.fetch()) == [0]
    assert errors(reader.fetch()) == []


def test_a_deleted_topic_is_reported_to_waiting_and_to_new_fetches(harness, reader):
    reader.fetch((*T0, 0), (*U0, 0))
    waiting = reader.send(max_wait_ms=60_000)
    assert not waiting.done
    harness.call(DeleteTopicsRequest(topics=[DeleteTopicState(name="t")]))
    assert order(reader.took(waiting.response)) == [T0]
    assert order(reader.fetch()) == [T0]
    assert told(reader.fetch(forget=[T0])) == {}


def test_a_reader_out_of_range_gets_the_error(harness, reader):
    reader.fetch((*T0, 0))
    (part,) = reader.fetch((*T0, 99)).responses[0].partitions
    assert part.error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    (part,) = reader.fetch((*T0, 0)).responses[0].partitions
    assert (part.error_code, part.high_watermark) == (0, 0)


def test_a_diverging_epoch_is_news(harness, reader):
    harness.produce("t", b"a", b"b")
    harness.restart()
    harness.produce("t", b"c")
    reader.fetch((*T0, 3))
    (part,) = reader.fetch((*T0, 3), last_fetched_epoch=0).responses[0].partitions
    assert part.diverging_epoch.end_offset == 2


# Waiting


def test_an_incremental_fetch_waits_and_is_woken_by_any_partition_of_the_session(harness, reader):
    reader.fetch((*T0, 0), (*U0, 0))
    pending = reader.send(max_wait_ms=500)
    assert not pending.done
    harness.send(produce_request("u", 0, batch(b"a")))
    assert not pending.done, "the batch is not durable yet"
    harness.sync()
    assert told(reader.took(pending.response)) == {U0: [b"a"]}


def test_an_incremental_fetch_without_changes_is_empty_at_its_deadline(harness, reader):
    reader.fetch((*T0, 0), (*U0, 0))
    pending = reader.send(max_wait_ms=500)
    harness.advance(499)
    assert not pending.done
    harness.advance(1)
    assert told(reader.took(pending.response)) == {}
    assert told(reader.fetch()) == {}


def test_a_full_fetch_that_waited_has_a_session_with_the_answered_state(harness, reader):
    pending = reader.send((*T0, 0), (*U0, 0), max_wait_ms=500)
    harness.produce("t", b"a")
    assert told(reader.took(pending.response)) == {T0: [b"a"], U0: []}
    assert told(reader.fetch((*T0, 1))) == {}


def test_a_later_fetch_of_the_session_fails_a_waiting_fetch(harness, reader):
    reader.fetch((*T0, 0))
    waiting = reader.send(max_wait_ms=500)
    reader.epoch += 1
    reader.fetch()
    harness.produce("t", b"a")
    assert waiting.response.error_code == ErrorCode.INVALID_FETCH_SESSION_EPOCH
    assert waiting.response.responses == []


# Limits


def test_partitions_that_gave_records_go_to_the_end_so_that_none_starves(harness, reader):
    for partition in range(3):
        for _ in range(3):
            harness.produce("t", b"a" * 1000, partition=partition)
    offsets = dict.fromkeys((T0, T1, T2), 0)
    response = reader.fetch(*((*key, 0) for key in offsets), max_bytes=100)
    seen = []
    for _ in range(8):
        (key,) = [key for key, records in told(response).items() if records]
        seen.append(key)
        offsets[key] += 1
        response = reader.fetch((*key, offsets[key]), max_bytes=100)
    assert seen == [T0, T1, T2] * 2 + [T0, T1]


# Epochs and ids


@pytest.mark.parametrize("epoch", [2, 3, -2, 2**31 - 1])
def test_another_epoch_is_refused_and_the_session_stays(harness, reader, epoch):
    reader.fetch((*T0, 0))
    right, reader.epoch = reader.epoch, epoch
    response = reader.send((*T1, 0)).response
    assert response.error_code == ErrorCode.INVALID_FETCH_SESSION_EPOCH
    assert (response.session_id, response.responses) == (0, [])
    reader.epoch = right
    harness.produce("t", b"a", partition=1)
    assert told(reader.fetch()) == {}, "the refused fetch changed nothing"


def test_the_same_fetch_again_is_refused(reader):
    reader.fetch((*T0, 0))
    reader.fetch()
    reader.epoch -= 1
    assert reader.send().response.error_code == ErrorCode.INVALID_FETCH_SESSION_EPOCH


def test_an_unknown_id_is_refused(harness, reader):
    reader.fetch((*T0, 0))
    reader.session_id += 1
    response = reader.send().response
    assert response.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert (response.session_id, response.responses) == (0, [])


@pytest.mark.parametrize("epoch", [0, -1])
def test_a_full_fetch_with_an_id_ends_the_session(harness, reader, epoch):
    reader.fetch((*T0, 0))
    old, reader.epoch = reader.session_id, epoch
    response = reader.send((*T0, 0)).response
    assert order(response) == [T0]
    assert (response.session_id != 0) == (epoch == 0)
    assert response.session_id != old
    reader.epoch = 1
    assert reader.send().response.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert len(harness.broker.services.fetch_sessions) == (1 if epoch == 0 else 0)


def test_sessions_do_not_survive_a_restart(harness, reader):
    reader.fetch((*T0, 0))
    harness.restart()
    assert reader.send().response.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND


def test_a_request_with_no_partitions_gets_no_session(harness, reader):
    assert reader.send().response.session_id == 0


def test_a_follower_gets_a_session(harness):
    state = ReplicaState(replica_id=2, replica_epoch=1)
    request = fetch_request((*T0, 0), replica_state=state, session_epoch=0, max_wait_ms=0)
    assert harness.call(request).session_id != 0


def test_readers_do_not_disturb_each_other(harness):
    one, two = Reader(harness), Reader(harness)
    one.fetch((*T0, 0))
    two.fetch((*T0, 0), (*U0, 0))
    assert one.session_id != two.session_id
    harness.produce("t", b"a")
    assert told(one.fetch()) == {T0: [b"a"]}
    assert told(two.fetch()) == {T0: [b"a"]}


@pytest.mark.parametrize("slots", [0, 1])
def test_without_space_for_a_session_the_response_has_id_0(slots):
    harness = BrokerHarness(max_incremental_fetch_session_cache_slots=slots)
    harness.create_topic("t", partitions=3)
    if slots:
        Reader(harness).fetch((*T0, 0))
    response = Reader(harness).send((*T0, 0), (*T1, 0)).response
    assert (response.error_code, response.session_id) == (0, 0)
    assert order(response) == [T0, T1]


def test_epochs_go_round_without_0():
    assert [next_epoch(epoch) for epoch in (0, 1, 2**31 - 2, 2**31 - 1)] == [1, 2, 2**31 - 1, 1]


# The cache


class Cache:
    """`FetchSessions` with short names. Partitions belong to one topic."""

    def __init__(self, slots: int = 2) -> None:
        self.sessions = FetchSessions(slots, CountingEntropy())
        self.now_ms = 1_000_000

    def full(self, size: int = 1, *, replica_id: int = -1) -> int:
        wanted = [("t", index, 0) for index in range(size)]
        request = fetch_request(*wanted, session_epoch=0, replica_id=replica_id)
        return int(self._finish(request).session_id)

    def use(self, session_id: int, epoch: int = 1, *wanted, forget=()) -> bool:
        forgotten = [ForgottenTopic(topic="t", partitions=list(forget))]
        request = fetch_request(
            *wanted,
            session_id=session_id,
            session_epoch=epoch,
            forgotten_topics_data=forgotten,
        )
        try:
            self._finish(request)
        except ApiError as error:
            if error.code != ErrorCode.FETCH_SESSION_ID_NOT_FOUND:
                raise
            return False
        return True

    def _finish(self, request):
        fetch = self.sessions.begin(request, self.now_ms)
        return fetch.finish(
            FetchResponse(
                responses=[
                    FetchableTopicResponse(
                        topic=topic.topic,
                        partitions=[
                            PartitionData(partition_index=part.partition, records=b"")
                            for part in topic.partitions
                        ],
                    )
                    for topic in fetch.topics
                ]
            )
        )


def test_a_new_session_does_not_drive_out_one_that_is_used():
    cache = Cache()
    kept = [cache.full(), cache.full()]
    assert all(kept)
    assert cache.full(100) == 0
    assert all(cache.use(session_id) for session_id in kept)


def test_the_longest_idle_session_is_evicted_when_it_is_stale():
    cache = Cache()
    one, two = cache.full(50), cache.full(50)
    cache.now_ms += EVICTION_MS
    assert cache.use(one)
    assert cache.full() == 0, "not stale yet"
    cache.now_ms += 1
    three = cache.full()
    assert three
    assert not cache.use(two)
    assert cache.use(one, 2)
    assert cache.use(three)


def test_an_old_session_is_evicted_for_a_larger_one_the_smallest_first():
    cache = Cache()
    small, large = cache.full(10), cache.full(20)
    cache.now_ms += EVICTION_MS + 1
    cache.use(small), cache.use(large)  # both are old now, and in use
    assert cache.full(10) == 0
    larger = cache.full(11)
    assert larger
    assert not cache.use(small, 2)
    assert cache.use(large, 2)
    assert cache.full(500), "the old one of 20 goes, though the new one of 11 is smaller"
    assert cache.use(larger)
    assert cache.full(1000) == 0, "those that are there have not been for long enough"


def test_the_session_of_a_replica_is_evicted_last():
    cache = Cache()
    reader, replica = cache.full(10), cache.full(1, replica_id=2)
    second = cache.full(1, replica_id=3)
    assert second, "it takes the place of a reader's, even of a new and larger one"
    assert not cache.use(reader)
    assert cache.full(1000) == 0
    assert cache.full(1000, replica_id=4) == 0
    cache.now_ms += EVICTION_MS + 1
    cache.use(replica), cache.use(second)
    assert cache.full(1000) == 0
    assert cache.full(1000, replica_id=4) > 0


def test_partitions_are_limited_in_all_sessions_together(monkeypatch):
    monkeypatch.setattr(fetch_sessions, "PARTITIONS_LIMIT", 10)
    cache = Cache(slots=5)
    one, two = cache.full(6), cache.full(3)
    assert cache.full(2) == 0
    assert cache.use(two, 1, ("t", 3, 0))
    assert cache.sessions.partitions_count == 10
    assert not cache.use(two, 2, ("t", 4, 0)), "it has to begin again, and stays without"
    assert cache.sessions.partitions_count == 6
    assert cache.use(one, 1, forget=[0, 1])
    assert cache.sessions.partitions_count == 4
    assert cache.full(6)
    assert len(cache.sessions) == 2


# The owner of a session


def test_another_user_can_neither_continue_nor_end_a_session(harness):
    owner = Reader(harness, session=Session(principal=Principal("alice")))
    owner.fetch((*T0, 0))
    thief = Reader(harness, session=Session(principal=Principal("eve")))
    thief.session_id, thief.epoch = owner.session_id, owner.epoch
    refused = thief.send().response
    assert (refused.error_code, refused.responses) == (ErrorCode.FETCH_SESSION_ID_NOT_FOUND, [])
    for epoch in (0, -1):
        thief.epoch = epoch
        assert thief.send((*U0, 0)).response.error_code == ErrorCode.NONE
    harness.produce("t", b"a")
    assert told(owner.fetch()) == {T0: [b"a"]}


def test_a_user_can_continue_a_session_on_another_connection(harness):
    first = Reader(harness, session=Session(principal=Principal("alice")))
    first.fetch((*T0, 0))
    first.session = Session(principal=Principal("alice"))
    harness.produce("t", b"a")
    assert told(first.fetch()) == {T0: [b"a"]}


def test_names_that_no_topic_can_have_are_not_kept(harness, reader):
    answer = harness.call(
        fetch_request(("x" * 250, 0, 0), max_wait_ms=0, session_id=0, session_epoch=0)
    )
    assert (answer.error_code, answer.session_id) == (ErrorCode.NONE, 0)
    reader.fetch((*T0, 0))
    refused = reader.send(("x" * 250, 0, 0)).response
    assert refused.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert len(harness.broker.services.fetch_sessions) == 0
