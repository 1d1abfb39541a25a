"""Fetch sessions (KIP-227): a reader names its partitions once, later only what changes, and is told only what changed.

The life of a session:

    1. A full fetch asks for one (epoch 0). When its answer is made, the partitions and what was said of them are kept
       under a new session id. There may be no room: the answer carries id 0, and the reader goes on with full fetches.
    2. The next fetch has the id and epoch 1, and names only partitions that are new, have another offset, or are to be
       forgotten. All partitions of the session are read, in the session's order; the answer has those with records,
       errors, another high watermark or log start.
    3. Each fetch has the next epoch. Another one means that an answer was lost or that two readers share the id: it
       gets INVALID_FETCH_SESSION_EPOCH, and the reader begins again with 1.
    4. A full fetch with the id ends the session; epoch -1 asks for no new one.

A session belongs to the user who began it. To others it is unknown: they can neither go on with it nor end it, and
learn no names from it. (Apache Kafka relies on the id, which is random.)

Partitions that gave records go to the end of the session's order, so that none starves when answers are full. What is
kept is bounded: so many sessions, and so many partitions in all of them. Who goes when there is no room is decided as
in Kafka.
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
"""How long a session must have been idle to go for any other, or have been used to go for a larger one. Kafka's."""
PARTITIONS_LIMIT: Final = 200_000
"""Partitions in all sessions together, which are some 100 MB, and the names of their topics."""
_NO_HIGH_WATERMARK: Final = -1

Key = tuple[str, int]


def next_epoch(epoch: int) -> int:
    """Return the epoch of the fetch after one: 0 stands for a new session, so it is left out."""
    return epoch + 1 if epoch < LAST_EPOCH else 1


def each_once(topics: list[FetchTopic]) -> list[FetchTopic]:
    """Return the partitions of a full fetch, each once: as its last mention says, in the place of the first.

    As in Kafka, partitions of one topic that follow each other are one entry, and a topic without any is none.
    """
    if len(topics) == 1 and len(topics[0].partitions) == 1:  # a frequent case
        return topics
    wanted: dict[Key, FetchPartition] = {}
    count = 0
    for topic in topics:
        count += len(topic.partitions)
        for partition in topic.partitions:
            wanted[topic.topic, partition.partition] = partition
    are_distinct = len({topic.topic for topic in topics if topic.partitions}) == len(topics)
    if are_distinct and count == len(wanted):
        return topics
    once: list[FetchTopic] = []
    for (name, _), partition in wanted.items():
        if not once or once[-1].topic != name:
            once.append(FetchTopic(topic=name))
        once[-1].partitions.append(partition)
    return once


class Fetch(Protocol):
    """One fetch request in its session, or without one."""

    @property
    def topics(self) -> Sequence[FetchTopic]:
        """The partitions to read, in this order."""

    def finish(self, response: FetchResponse) -> FetchResponse:
        """Return what to answer, given what was read of `topics`. Called once, or `put_off` is."""

    def put_off(self) -> FetchResponse:
        """Return the answer that gives nothing: the reader is to come again, and has been told nothing (KIP-219)."""


class _Cached:
    """A partition of a session: how it is to be read, and what the reader was told."""

    __slots__ = ("high_watermark", "log_start_offset", "wanted")

    def __init__(self, wanted: FetchPartition) -> None:
        self.wanted = wanted
        self.high_watermark = _NO_HIGH_WATERMARK
        self.log_start_offset = -1

    def follow(self, wanted: FetchPartition) -> None:
        """Read on as the reader says now."""
        mine = self.wanted
        mine.fetch_offset = wanted.fetch_offset
        mine.current_leader_epoch = wanted.current_leader_epoch
        mine.last_fetched_epoch = wanted.last_fetched_epoch
        mine.log_start_offset = wanted.log_start_offset
        mine.partition_max_bytes = wanted.partition_max_bytes

    def tell(self, data: PartitionData) -> bool:
        """Note what the reader is told; returns whether it is news."""
        failed = data.error_code != ErrorCode.NONE
        # After an error the partition is told again as soon as it is well.
        high_watermark = _NO_HIGH_WATERMARK if failed else data.high_watermark
        news = (
            failed
            or bool(data.records)
            or high_watermark != self.high_watermark
            or data.log_start_offset != self.log_start_offset
            or data.diverging_epoch is not None
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
    )

    def __init__(self, session_id: int, owner: Principal, *, privileged: bool, now_ms: int) -> None:
        self.session_id = session_id
        self.owner = owner
        """Whose it is."""
        self.privileged = privileged
        """Whether it is a replica's, which goes last."""
        self.epoch = next_epoch(INITIAL_EPOCH)
        """The epoch that the next fetch must have."""
        self.created_ms = now_ms
        self.last_used_ms = now_ms
        self.counted = 0
        """How many partitions it had when it was last used, as the cache counts."""
        self._partitions: dict[Key, _Cached] = {}
        self._topics: list[FetchTopic] | None = None

    def __len__(self) -> int:
        return len(self._partitions)

    @property
    def topics(self) -> Sequence[FetchTopic]:
        """The partitions in the session's order, neighbours of one topic together."""
        if self._topics is None:
            topics: list[FetchTopic] = []
            for (name, _), cached in self._partitions.items():
                if not topics or topics[-1].topic != name:
                    topics.append(FetchTopic(topic=name))
                topics[-1].partitions.append(cached.wanted)
            self._topics = topics
        return self._topics

    def update(self, wanted: Iterable[FetchTopic], forgotten: Iterable[ForgottenTopic]) -> None:
        """Add partitions or read them on elsewhere; forget others."""
        for topic in wanted:
            for partition in topic.partitions:
                cached = self._partitions.get((topic.topic, partition.partition))
                if cached is not None:
                    cached.follow(partition)
                else:
                    self._partitions[topic.topic, partition.partition] = _Cached(partition)
                    self._topics = None
        for gone in forgotten:
            for index in gone.partitions:
                if self._partitions.pop((gone.topic, index), None) is not None:
                    self._topics = None

    def news(self, response: FetchResponse) -> list[FetchableTopicResponse]:
        """Return of a response what the reader does not know yet, and note that it is told."""
        told = []
        for topic in response.responses:
            partitions = [data for data in topic.partitions if self._tell(topic.topic, data)]
            if partitions:
                told.append(FetchableTopicResponse(topic=topic.topic, partitions=partitions))
        return told

    def _tell(self, topic: str, data: PartitionData) -> bool:
        key = (topic, data.partition_index)
        cached = self._partitions.get(key)
        if cached is None:
            return True
        if data.records and len(self._partitions) > 1:
            del self._partitions[key]
            self._partitions[key] = cached
            self._topics = None
        return cached.tell(data)


class FetchSessions:
    """All sessions, the one that was idle for longest first."""

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
        """Partitions in all sessions."""
        return self._partitions_count

    def begin(self, request: FetchRequest, now_ms: int, reader: Principal = ANONYMOUS) -> Fetch:
        """Find a fetch's session.

        Args:
            request: The fetch.
            now_ms: The time.
            reader: Who fetches.

        Raises:
            ApiError: FETCH_SESSION_ID_NOT_FOUND or INVALID_FETCH_SESSION_EPOCH, for the request as a whole.
        """
        self._latest_ms = max(self._latest_ms, now_ms)
        if request.session_epoch in FULL_FETCH_EPOCHS:
            if (
                request.session_id != NO_SESSION
                and self._find(request.session_id, reader) is not None
            ):
                self.remove(request.session_id)
            request.topics = each_once(request.topics)
            if request.session_epoch == FINAL_EPOCH or not self._slots:
                return WithoutSession(request.topics)
            return FullFetch(self, request, reader)
        session = self._find(request.session_id, reader)
        if session is None:
            raise ApiError(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        if session.epoch != request.session_epoch:
            raise ApiError(ErrorCode.INVALID_FETCH_SESSION_EPOCH)
        if _has_long_names(request):
            self.remove(session.session_id)
            raise ApiError(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        session.update(request.topics, request.forgotten_topics_data)
        if not len(session):
            self.remove(session.session_id)
            return WithoutSession(())
        self._touch(session)
        if self._partitions_count > PARTITIONS_LIMIT:
            # The reader begins again with a full fetch, and is told that there is no session for it.
            self.remove(session.session_id)
            raise ApiError(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        session.epoch = next_epoch(session.epoch)
        return IncrementalFetch(session)

    def _find(self, session_id: int, reader: Principal) -> FetchSession | None:
        session = self._sessions.get(session_id)
        return None if session is None or session.owner != reader else session

    def create(self, request: FetchRequest, response: FetchResponse, reader: Principal) -> int:
        """Keep the partitions of a full fetch and what was answered; returns the new id, 0 if there is no room."""
        size = sum(len(topic.partitions) for topic in request.topics)
        privileged = request.replica_id >= 0
        if not size or size + self._partitions_count > PARTITIONS_LIMIT or _has_long_names(request):
            return NO_SESSION
        if len(self._sessions) >= self._slots and not self._evict(size, privileged=privileged):
            return NO_SESSION
        session_id = self._new_id()
        session = FetchSession(session_id, reader, privileged=privileged, now_ms=self._latest_ms)
        session.update(request.topics, ())
        session.news(response)
        self._sessions[session_id] = session
        self._touch(session)
        return session_id

    def remove(self, session_id: int) -> None:
        """End a session; no error if there is none."""
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
        """Make room for a session of `size` partitions, if one there is worth less; returns whether."""
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
    """Whether a fetch names what cannot be a topic, so that there is no use in remembering it."""
    return any(len(topic.topic) > NAME_LIMIT for topic in request.topics)


class WithoutSession:
    """A full fetch that asks for no session."""

    __slots__ = ("topics",)

    def __init__(self, topics: Sequence[FetchTopic]) -> None:
        self.topics = topics

    def finish(self, response: FetchResponse) -> FetchResponse:
        """Answer everything."""
        return response

    def put_off(self) -> FetchResponse:
        """Answer nothing."""
        return FetchResponse()


class FullFetch:
    """A full fetch that asks for a session."""

    __slots__ = ("_reader", "_request", "_sessions", "topics")

    def __init__(self, sessions: FetchSessions, request: FetchRequest, reader: Principal) -> None:
        self._sessions = sessions
        self._request = request
        self._reader = reader
        self.topics: Sequence[FetchTopic] = request.topics

    def finish(self, response: FetchResponse) -> FetchResponse:
        """Answer everything, with the id of a session if there is room for one."""
        response.session_id = self._sessions.create(self._request, response, self._reader)
        return response

    def put_off(self) -> FetchResponse:
        """Answer nothing, and make no session: the full fetch is to come again."""
        return FetchResponse()


class IncrementalFetch:
    """A fetch in a session."""

    __slots__ = ("_epoch", "_session", "topics")

    def __init__(self, session: FetchSession) -> None:
        self._session = session
        self._epoch = session.epoch
        self.topics = session.topics

    def finish(self, response: FetchResponse) -> FetchResponse:
        """Answer what is news; an error if the session went on while this fetch waited."""
        answer = self.put_off()
        if answer.error_code == ErrorCode.NONE:
            answer.responses = self._session.news(response)
        return answer

    def put_off(self) -> FetchResponse:
        """Answer that there is no news, though there may be."""
        session = self._session
        code = ErrorCode.NONE
        if session.epoch != self._epoch:
            code = ErrorCode.INVALID_FETCH_SESSION_EPOCH
        return FetchResponse(error_code=code, session_id=session.session_id)
