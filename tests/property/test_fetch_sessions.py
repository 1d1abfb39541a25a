"""Readers with fetch sessions receive the same data as with full fetches, while sessions are created and dropped."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from headrace.broker.waiting.fetch_sessions import EVICTION_MS, Fetch, FetchSessions
from headrace.errors import ApiError, ErrorCode
from headrace.protocol.messages.fetch import (
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ForgottenTopic,
    PartitionData,
)
from tests.effort import examples
from tests.fixtures.broker_harness import CountingEntropy

Key = tuple[str, int]
KEYS: list[Key] = [(topic, index) for topic in ("a", "b") for index in range(2)]
REFUSALS = (ErrorCode.FETCH_SESSION_ID_NOT_FOUND, ErrorCode.INVALID_FETCH_SESSION_EPOCH)
READERS = 3
SLOTS = 2


@dataclass
class Truth:
    """The broker's state of a partition."""

    end: int = 0
    start: int = 0
    failed: bool = False
    leader_epoch: int = 0

    def state(self) -> tuple[int, int, bool]:
        return (-1, -1, True) if self.failed else (self.end, self.start, False)


@dataclass
class Reader:
    """A client: the partitions that it reads, the partitions of its session, and its responses."""

    wanted: dict[Key, int] = field(default_factory=dict)
    session_id: int = 0
    epoch: int = 0
    asked: dict[Key, tuple[int, int]] = field(default_factory=dict)
    known: dict[Key, tuple[int, int, bool]] = field(default_factory=dict)
    waiting: tuple[Fetch, bool] | None = None


class Sessions(RuleBasedStateMachine):
    uses_topic_ids = False

    def __init__(self) -> None:
        super().__init__()
        self.sessions = FetchSessions(SLOTS, CountingEntropy())
        self.truth = {key: Truth() for key in KEYS}
        self.readers = [Reader() for _ in range(READERS)]
        self.now_ms = 0

    @initialize()
    def everybody_wants_something(self) -> None:
        for number, reader in enumerate(self.readers):
            reader.wanted = dict.fromkeys(KEYS[number:], 0)

    # --- the broker ---

    @rule(key=st.sampled_from(KEYS))
    def append(self, key: Key) -> None:
        self.truth[key].end += 1

    @rule(key=st.sampled_from(KEYS))
    def delete_records(self, key: Key) -> None:
        self.truth[key].start = self.truth[key].end

    @rule(key=st.sampled_from(KEYS))
    def fail_or_recover(self, key: Key) -> None:
        self.truth[key].failed = not self.truth[key].failed

    @rule(key=st.sampled_from(KEYS))
    def elect(self, key: Key) -> None:
        self.truth[key].leader_epoch += 1

    @rule(ms=st.sampled_from([1, EVICTION_MS // 2, EVICTION_MS + 1]))
    def pass_time(self, ms: int) -> None:
        self.now_ms += ms

    # --- readers ---

    @rule(number=st.integers(0, READERS - 1), key=st.sampled_from(KEYS))
    def want(self, number: int, key: Key) -> None:
        self.readers[number].wanted.setdefault(key, self.truth[key].start)

    @rule(number=st.integers(0, READERS - 1), key=st.sampled_from(KEYS))
    def want_no_more(self, number: int, key: Key) -> None:
        self.readers[number].wanted.pop(key, None)

    @rule(number=st.integers(0, READERS - 1))
    def give_up_session(self, number: int) -> None:
        """Begin a new session after a lost response or a restart of the reader. The request has the old session id."""
        reader = self.readers[number]
        reader.epoch, reader.waiting = 0, None

    @rule(waits=st.lists(st.booleans(), min_size=READERS, max_size=READERS))
    def everybody_fetches(self, waits: list[bool]) -> None:
        for reader, long_poll in zip(self.readers, waits, strict=True):
            if reader.waiting is None:
                self.fetch(reader, waits=long_poll)

    @precondition(lambda self: any(reader.waiting is not None for reader in self.readers))
    @rule()
    def everybody_is_answered(self) -> None:
        for reader in self.readers:
            if reader.waiting is not None:
                self.answer(reader)

    def fetch(self, reader: Reader, *, waits: bool) -> None:
        request = self.request(reader)
        full = not reader.epoch
        try:
            fetch = self.sessions.begin(request, self.now_ms, uses_topic_ids=self.uses_topic_ids)
        except ApiError as error:
            if full or error.code not in REFUSALS:
                raise
            reader.session_id = reader.epoch = 0
            return
        reader.waiting = (fetch, full)
        if not waits:
            self.answer(reader)

    def request(self, reader: Reader) -> FetchRequest:
        wanted = {
            key: (offset, self.truth[key].leader_epoch) for key, offset in reader.wanted.items()
        }
        if reader.epoch:
            named = {key: asked for key, asked in wanted.items() if reader.asked.get(key) != asked}
            gone = [key for key in reader.asked if key not in reader.wanted]
        else:
            named, gone = wanted, []
            reader.known = {}
        reader.asked = wanted
        for key in gone:
            reader.known.pop(key, None)
        return FetchRequest(
            session_id=reader.session_id,
            session_epoch=reader.epoch,
            topics=[
                FetchTopic(
                    **self.named(topic),
                    partitions=[
                        FetchPartition(
                            partition=index, fetch_offset=offset, current_leader_epoch=leader_epoch
                        )
                    ],
                )
                for (topic, index), (offset, leader_epoch) in named.items()
            ],
            forgotten_topics_data=[
                ForgottenTopic(**self.named(topic), partitions=[index]) for topic, index in gone
            ],
        )

    def named(self, topic: str) -> dict[str, Any]:
        """Return the fields with which a request names a topic."""
        return {"topic_id": topic.encode() * 16} if self.uses_topic_ids else {"topic": topic}

    def name(self, topic: FetchTopic | FetchableTopicResponse) -> str:
        return chr(topic.topic_id[0]) if self.uses_topic_ids else topic.topic

    def answer(self, reader: Reader) -> None:
        assert reader.waiting is not None
        (fetch, full), reader.waiting = reader.waiting, None
        read = {
            (self.name(topic), part.partition): (part.fetch_offset, part.current_leader_epoch)
            for topic in fetch.topics
            for part in topic.partitions
        }
        assert read == reader.asked, (
            "exactly what the reader wants is read, where and in the epoch it wants"
        )
        response = fetch.finish(self.read(fetch))
        assert response.error_code == 0
        told = [
            ((self.name(topic), part.partition_index), part)
            for topic in response.responses
            for part in topic.partitions
        ]
        assert len(dict(told)) == len(told)
        if full:
            assert dict(told).keys() == reader.asked.keys()
        for key, part in told:
            before = reader.known.get(key)
            news = (part.high_watermark, part.log_start_offset, part.error_code != 0)
            assert full or part.records or part.error_code or news != before, (
                "no unchanged partition is answered"
            )
            reader.known[key] = news
            if part.records and key in reader.wanted:
                reader.wanted[key] = part.high_watermark
        assert reader.known == {key: self.truth[key].state() for key in reader.asked}
        reader.session_id = response.session_id
        reader.epoch = reader.epoch + 1 if response.session_id else 0

    def read(self, fetch: Fetch) -> FetchResponse:
        return FetchResponse(
            responses=[
                FetchableTopicResponse(
                    **self.named(self.name(topic)),
                    partitions=[self.data(self.name(topic), part) for part in topic.partitions],
                )
                for topic in fetch.topics
            ]
        )

    def data(self, topic: str, wanted: FetchPartition) -> PartitionData:
        truth = self.truth[topic, wanted.partition]
        if truth.failed:
            error = ErrorCode.KAFKA_STORAGE_ERROR
            return PartitionData(
                partition_index=wanted.partition, error_code=error, high_watermark=-1, records=b""
            )
        return PartitionData(
            partition_index=wanted.partition,
            high_watermark=truth.end,
            log_start_offset=truth.start,
            records=b"records" if wanted.fetch_offset < truth.end else b"",
        )

    @invariant()
    def the_cache_is_bounded_and_counts_right(self) -> None:
        found = self.sessions._sessions
        assert len(found) <= SLOTS
        assert self.sessions.partitions_count == sum(len(session) for session in found.values())
        assert all(session.session_id == key for key, session in found.items())


class SessionsWithTopicIds(Sessions):
    uses_topic_ids = True


TestSessionsWithTopicIds = SessionsWithTopicIds.TestCase
TestSessionsWithTopicIds.settings = settings(
    max_examples=examples(50), stateful_step_count=30, deadline=None
)
TestSessions = Sessions.TestCase
TestSessions.settings = settings(max_examples=examples(100), stateful_step_count=30, deadline=None)
