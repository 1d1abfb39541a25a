"""Fetch sessions (KIP-227): a reader names its partitions once, and later only the changes; so does the broker.

The life of a session:

    1. The reader sends a full fetch with epoch 0, which asks for a session. With the response the broker stores the
       partitions and their reported state under a new session id. Without space the response has the id 0, and
       the reader continues with full fetches.
    2. The next fetch of the reader has the id and epoch 1. It names only partitions that are new, have another offset,
       or are removed. The broker reads all partitions in the order of the session. The response has the partitions with
       records, errors, another high watermark or another log start offset.
    3. Each fetch has the next epoch. Another epoch means that a response was lost, or that two readers use the id. The
       broker answers INVALID_FETCH_SESSION_EPOCH, and the reader begins again with 1.
    4. A full fetch with the id ends the session. Epoch -1 asks for no new session.

A session belongs to the principal that began it. For other principals the session does not exist: they can neither
continue nor end it, and learn no names from it. (Apache Kafka relies on the id, which is random.)

A reader names topics by id or by name (Fetch before version 13), and does not change that within a session.

Partitions that gave records move to the end of the session's order, so that no partition starves when responses are
full. The number of sessions is bounded, and the number of partitions in all sessions. At a bound, the broker
chooses the session to remove as Kafka does.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, Protocol

from headrace.broker.topic_names import NAME_LIMIT
from headrace.errors import ApiError, ErrorCode
from headrace.ports import Entropy
from headrace.protocol.messages.fetch import (
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ForgottenTopic,
    PartitionData,
)
from headrace.security.principal import ANONYMOUS, Principal

NO_SESSION: Final = 0
INITIAL_EPOCH: Final = 0
FINAL_EPOCH: Final = -1
FULL_FETCH_EPOCHS: Final = frozenset({INITIAL_EPOCH, FINAL_EPOCH})
LAST_EPOCH: Final = 2**31 - 1
EVICTION_MS: Final = 120_000
"""The idle time after which any session may replace a session, and the age after which a larger one may; as in
Kafka.
"""
PARTITIONS_LIMIT: Final = 200_000
"""The greatest number of partitions in all sessions: some 100 MB, and the names of their topics."""
_NO_HIGH_WATERMARK: Final = -1

Key = tuple[str | bytes, int]
"""A partition: the name or the id of its topic, as the request has it, and its number."""


def next_epoch(epoch: int) -> int:
    """Return the epoch that follows an epoch; never 0, which stands for a new session."""
    return epoch + 1 if epoch < LAST_EPOCH else 1


def replica_of(request: FetchRequest) -> int:
    """Return the broker id of the follower that sends a fetch; negative for a consumer."""
    state = request.replica_state
    return request.replica_id if state is None else state.replica_id


def each_once(topics: list[FetchTopic], *, uses_topic_ids: bool) -> list[FetchTopic]:
    """Return the partitions of a full fetch, each once: with the values of its last mention, in the order of the first.

    As in Kafka, consecutive partitions of one topic are one entry, and a topic without partitions has no entry.
    """
    if len(topics) == 1 and len(topics[0].partitions) == 1:  # the usual case
        return topics
    wanted: dict[Key, FetchPartition] = {}
    names: set[str | bytes] = set()
    count = 0
    for topic in topics:
        count += len(topic.partitions)
        name = topic.topic_id if uses_topic_ids else topic.topic
        for partition in topic.partitions:
            wanted[name, partition.partition] = partition
            names.add(name)
    if len(names) == len(topics) and count == len(wanted):
        return topics
    once: list[FetchTopic] = []
    last: str | bytes | None = None
    for (name, _), partition in wanted.items():
        if name != last:
            last = name
            once.append(_topic(name, ""))
        once[-1].partitions.append(partition)
    return once


def _topic(key: str | bytes, name: str) -> FetchTopic:
    """Return an entry without partitions.

    Args:
        key: The name or the id of the topic, as the request has it.
        name: The name of a topic that the request names by id; "" if it is unknown.
    """
    return FetchTopic(topic=key) if isinstance(key, str) else FetchTopic(topic_id=key, topic=name)


class Fetch(Protocol):
    """One fetch request in its session, or without one."""

    @property
    def topics(self) -> Sequence[FetchTopic]:
        """The partitions to read, in the order in which they are read."""

    def finish(self, response: FetchResponse) -> FetchResponse:
        """Return the response, given what was read of `topics`. Either this method or `put_off` is called, once."""

    def put_off(self) -> FetchResponse:
        """Return a response without partitions: the reader has to fetch again (KIP-219)."""


class _Cached:
    """A partition of a session: how to read it, and the state that was reported to the reader."""

    __slots__ = ("high_watermark", "log_start_offset", "topic_name", "wanted")

    def __init__(self, topic_name: str, wanted: FetchPartition) -> None:
        self.topic_name = topic_name
        """The name that the topic had when it was last read; "" if no topic had the id then."""
        self.wanted = wanted
        self.high_watermark = _NO_HIGH_WATERMARK
        self.log_start_offset = -1

    def follow(self, wanted: FetchPartition) -> None:
        """Take over the offset and the limits of a later fetch."""
        mine = self.wanted
        mine.fetch_offset = wanted.fetch_offset
        mine.current_leader_epoch = wanted.current_leader_epoch
        mine.last_fetched_epoch = wanted.last_fetched_epoch
        mine.log_start_offset = wanted.log_start_offset
        mine.partition_max_bytes = wanted.partition_max_bytes

    def tell(self, data: PartitionData) -> bool:
        """Store the state that is reported to the reader. Return whether it differs from the last report."""
        failed = data.error_code != ErrorCode.NONE
        # After an error the partition is reported again as soon as it is read without error. A reader whose log has
        # diverged truncates it, and does not take the high watermark.
        is_taken = not failed and data.diverging_epoch is None
        high_watermark = data.high_watermark if is_taken else _NO_HIGH_WATERMARK
        news = (
            failed
            or bool(data.records)
            or high_watermark != self.high_watermark
            or data.log_start_offset != self.log_start_offset
            or data.diverging_epoch is not None
            or data.headrace_schedule
        )
        self.high_watermark = high_watermark
        self.log_start_offset = data.log_start_offset
        return news


class FetchSession:
    """The partitions of one reader."""

    __slots__ = (
        "_partitions",
        "_topics",
        "counted",
        "created_ms",
        "epoch",
        "last_used_ms",
        "owner",
        "privileged",
        "session_id",
        "uses_topic_ids",
    )

    def __init__(
        self,
        session_id: int,
        owner: Principal,
        *,
        privileged: bool,
        now_ms: int,
        uses_topic_ids: bool,
    ) -> None:
        self.session_id = session_id
        self.uses_topic_ids = uses_topic_ids
        """Whether the reader names topics by id."""
        self.owner = owner
        """The principal that began the session."""
        self.privileged = privileged
        """Whether a replica began the session; such a session is removed last."""
        self.epoch = next_epoch(INITIAL_EPOCH)
        """The epoch that the next fetch must have."""
        self.created_ms = now_ms
        self.last_used_ms = now_ms
        self.counted = 0
        """The number of partitions at the last use, as the cache counts them."""
        self._partitions: dict[Key, _Cached] = {}
        self._topics: list[FetchTopic] | None = None

    def __len__(self) -> int:
        return len(self._partitions)

    @property
    def topics(self) -> Sequence[FetchTopic]:
        """The partitions in the order of the session; consecutive partitions of one topic are one entry.

        If the reader names topics by id, an entry also has the name that the topic had when it was last read.
        """
        if self._topics is None:
            topics: list[FetchTopic] = []
            last: str | bytes | None = None
            for (name, _), cached in self._partitions.items():
                if name != last:
                    last = name
                    topics.append(_topic(name, cached.topic_name))
                topics[-1].partitions.append(cached.wanted)
            self._topics = topics
        return self._topics

    def update(self, wanted: Iterable[FetchTopic], forgotten: Iterable[ForgottenTopic]) -> None:
        """Add partitions, change the offsets of others, and remove the forgotten ones."""
        by_id = self.uses_topic_ids
        for topic in wanted:
            name = topic.topic_id if by_id else topic.topic
            for partition in topic.partitions:
                cached = self._partitions.get((name, partition.partition))
                if cached is not None:
                    cached.follow(partition)
                else:
                    self._partitions[name, partition.partition] = _Cached(topic.topic, partition)
                    self._topics = None
        for gone in forgotten:
            name = gone.topic_id if by_id else gone.topic
            for index in gone.partitions:
                if self._partitions.pop((name, index), None) is not None:
                    self._topics = None

    def news(self, response: FetchResponse) -> list[FetchableTopicResponse]:
        """Return the partitions of a response whose state the reader does not know yet, and store that state."""
        told = []
        for topic in response.responses:
            partitions = [data for data in topic.partitions if self._tell(topic, data)]
            if partitions:
                told.append(
                    FetchableTopicResponse(
                        topic=topic.topic, topic_id=topic.topic_id, partitions=partitions
                    )
                )
        return told

    def _tell(self, topic: FetchableTopicResponse, data: PartitionData) -> bool:
        key = (topic.topic_id if self.uses_topic_ids else topic.topic, data.partition_index)
        cached = self._partitions.get(key)
        if cached is None:
            return True
        cached.topic_name = topic.topic
        if data.records and len(self._partitions) > 1:
            del self._partitions[key]
            self._partitions[key] = cached
            self._topics = None
        return cached.tell(data)


class FetchSessions:
    """All sessions, in the order of their last use."""

    __slots__ = ("_entropy", "_latest_ms", "_partitions_count", "_sessions", "_slots")

    def __init__(self, slots: int, entropy: Entropy) -> None:
        """Keep at most `slots` sessions."""
        self._slots = slots
        self._entropy = entropy
        self._sessions: dict[int, FetchSession] = {}
        self._partitions_count = 0
        self._latest_ms = 0

    def __len__(self) -> int:
        return len(self._sessions)

    @property
    def partitions_count(self) -> int:
        """The number of partitions in all sessions."""
        return self._partitions_count

    def begin(
        self,
        request: FetchRequest,
        now_ms: int,
        reader: Principal = ANONYMOUS,
        *,
        uses_topic_ids: bool = False,
    ) -> Fetch:
        """Find a fetch's session.

        Args:
            request: The fetch.
            now_ms: The time.
            reader: The authenticated principal of the fetch.
            uses_topic_ids: Whether the request names topics by id.

        Raises:
            ApiError: FETCH_SESSION_ID_NOT_FOUND, INVALID_FETCH_SESSION_EPOCH or FETCH_SESSION_TOPIC_ID_ERROR, for the
                request as a whole.
        """
        self._latest_ms = max(self._latest_ms, now_ms)
        if request.session_epoch in FULL_FETCH_EPOCHS:
            if (
                request.session_id != NO_SESSION
                and self._find(request.session_id, reader) is not None
            ):
                self.remove(request.session_id)
            request.topics = each_once(request.topics, uses_topic_ids=uses_topic_ids)
            if request.session_epoch == FINAL_EPOCH or not self._slots:
                return WithoutSession(request.topics)
            return FullFetch(self, request, reader, uses_topic_ids=uses_topic_ids)
        session = self._find(request.session_id, reader)
        if session is None:
            raise ApiError(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        if session.epoch != request.session_epoch:
            raise ApiError(ErrorCode.INVALID_FETCH_SESSION_EPOCH)
        if session.uses_topic_ids != uses_topic_ids:
            raise ApiError(ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR)
        if _has_long_names(request):
            self.remove(session.session_id)
            raise ApiError(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        session.update(request.topics, request.forgotten_topics_data)
        if not len(session):
            self.remove(session.session_id)
            return WithoutSession(())
        self._touch(session)
        if self._partitions_count > PARTITIONS_LIMIT:
            # The reader sends a full fetch again, and gets no session.
            self.remove(session.session_id)
            raise ApiError(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        session.epoch = next_epoch(session.epoch)
        return IncrementalFetch(session)

    def _find(self, session_id: int, reader: Principal) -> FetchSession | None:
        session = self._sessions.get(session_id)
        return None if session is None or session.owner != reader else session

    def create(
        self,
        request: FetchRequest,
        response: FetchResponse,
        reader: Principal,
        *,
        uses_topic_ids: bool,
    ) -> int:
        """Store the partitions of a full fetch and its response. Return the new session id, 0 if there is no space."""
        size = sum(len(topic.partitions) for topic in request.topics)
        privileged = replica_of(request) >= 0
        if not size or size + self._partitions_count > PARTITIONS_LIMIT or _has_long_names(request):
            return NO_SESSION
        if len(self._sessions) >= self._slots and not self._evict(size, privileged=privileged):
            return NO_SESSION
        session_id = self._new_id()
        session = FetchSession(
            session_id,
            reader,
            privileged=privileged,
            now_ms=self._latest_ms,
            uses_topic_ids=uses_topic_ids,
        )
        session.update(request.topics, ())
        session.news(response)
        self._sessions[session_id] = session
        self._touch(session)
        return session_id

    def remove(self, session_id: int) -> None:
        """End a session, if it exists."""
        session = self._sessions.pop(session_id, None)
        if session is not None:
            self._partitions_count -= session.counted

    def _touch(self, session: FetchSession) -> None:
        session.last_used_ms = self._latest_ms
        self._partitions_count += len(session) - session.counted
        session.counted = len(session)
        del self._sessions[session.session_id]
        self._sessions[session.session_id] = session

    def _evict(self, size: int, *, privileged: bool) -> bool:
        """Remove a session that is worth less than one of `size` partitions. Return whether there was one."""
        oldest = next(iter(self._sessions.values()))
        if self._latest_ms - oldest.last_used_ms > EVICTION_MS:
            self.remove(oldest.session_id)
            return True
        candidates = [
            ((session.privileged, session.counted), session.session_id)
            for session in self._sessions.values()
            if (privileged and not session.privileged)
            or session.last_used_ms - session.created_ms > EVICTION_MS
        ]
        worth, session_id = min(candidates, default=((True, 0), NO_SESSION))
        if session_id == NO_SESSION or (privileged, size) <= worth:
            return False
        self.remove(session_id)
        return True

    def _new_id(self) -> int:
        while True:
            session_id = int.from_bytes(self._entropy.uuid()[-4:]) & 0x7FFF_FFFF
            if session_id != NO_SESSION and session_id not in self._sessions:
                return session_id


def _has_long_names(request: FetchRequest) -> bool:
    """Whether a fetch has a name that is too long for a topic, so that it is not stored."""
    return any(len(topic.topic) > NAME_LIMIT for topic in request.topics)


class WithoutSession:
    """A full fetch that asks for no session."""

    __slots__ = ("topics",)

    def __init__(self, topics: Sequence[FetchTopic]) -> None:
        self.topics = topics

    def finish(self, response: FetchResponse) -> FetchResponse:
        """Return the whole response."""
        return response

    def put_off(self) -> FetchResponse:
        """Return a response without partitions."""
        return FetchResponse()


class FullFetch:
    """A full fetch that asks for a session."""

    __slots__ = ("_reader", "_request", "_sessions", "_uses_topic_ids", "topics")

    def __init__(
        self,
        sessions: FetchSessions,
        request: FetchRequest,
        reader: Principal,
        *,
        uses_topic_ids: bool,
    ) -> None:
        self._uses_topic_ids = uses_topic_ids
        self._sessions = sessions
        self._request = request
        self._reader = reader
        self.topics: Sequence[FetchTopic] = request.topics

    def finish(self, response: FetchResponse) -> FetchResponse:
        """Return the whole response, with the id of a session if there is space for one."""
        response.session_id = self._sessions.create(
            self._request, response, self._reader, uses_topic_ids=self._uses_topic_ids
        )
        return response

    def put_off(self) -> FetchResponse:
        """Return a response without partitions and session: the reader has to send the full fetch again."""
        return FetchResponse()


class IncrementalFetch:
    """A fetch in a session."""

    __slots__ = ("_epoch", "_session", "topics")

    def __init__(self, session: FetchSession) -> None:
        self._session = session
        self._epoch = session.epoch
        self.topics = session.topics

    def finish(self, response: FetchResponse) -> FetchResponse:
        """Return the changes; an error if a later fetch used the session while this fetch waited."""
        answer = self.put_off()
        if answer.error_code == ErrorCode.NONE:
            answer.responses = self._session.news(response)
            answer.node_endpoints = response.node_endpoints
        return answer

    def put_off(self) -> FetchResponse:
        """Return a response without changes. The next fetch returns the changes."""
        session = self._session
        code = ErrorCode.NONE
        if session.epoch != self._epoch:
            code = ErrorCode.INVALID_FETCH_SESSION_EPOCH
        return FetchResponse(error_code=code, session_id=session.session_id)
