"""The requests of one fetch loop: the partitions, and the session in which a request has only what has changed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from headrace.broker.replication.partition import Partition
from headrace.broker.topic_names import is_schedule, topic_of
from headrace.core.replica.following import Decision, Fetched, Following, Position
from headrace.protocol.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ForgottenTopic,
    PartitionData,
    ReplicaState,
)
from headrace.types import TopicPartition

_NO_SESSION: Final = 0
_NEW_SESSION: Final = 0
_LAST_EPOCH: Final = 2**31 - 1

Key = tuple[bytes, int]
"""A partition: the id of its topic and its number."""


class _Followed:
    """A partition that is fetched."""

    __slots__ = ("following", "partition", "position")

    def __init__(self, partition: Partition, following: Following) -> None:
        self.partition = partition
        self.following = following
        self.position: Position | None = None
        """The position that the leader knows; None if the position has changed since, or was never sent."""


class FetchPlan:
    """The partitions that are fetched from one leader broker, and the fetch session with it."""

    __slots__ = (
        "_changed",
        "_epoch",
        "_followed",
        "_forgotten",
        "_keys",
        "_named",
        "_partition_bytes",
        "_response_bytes",
        "_session_id",
    )

    def __init__(self, partition_bytes: int, response_bytes: int) -> None:
        """Begin without partitions.

        Args:
            partition_bytes: The bytes of one partition that a request asks for.
            response_bytes: The bytes that a request asks for.
        """
        self._partition_bytes = partition_bytes
        self._response_bytes = response_bytes
        self._followed: dict[Key, _Followed] = {}
        self._keys: dict[Partition, Key] = {}
        self._changed: dict[Key, None] = {}
        """The partitions whose position the leader does not know."""
        self._named: dict[Key, str] = {}
        """The partitions that requests of the session have named, with the names of their topics."""
        self._forgotten: dict[Key, str] = {}
        """The partitions to remove from the session, with the names of their topics."""
        self._session_id = _NO_SESSION
        self._epoch = _NEW_SESSION

    def __len__(self) -> int:
        return len(self._followed)

    # Partitions

    def add(self, partition: Partition) -> None:
        """Fetch a partition in the leader epoch of its role."""
        name = partition.topic_partition
        key = partition.log_dir.logs.topic_id(name), fetched_index(name)
        following = Following(
            partition.leader_epoch,
            syncs_first=not partition.sync_interval_ms,
            unclean_epoch=partition.newest.unclean_epoch,
        )
        self._keys[partition] = key
        self._followed[key] = _Followed(partition, following)
        self._changed[key] = None
        if key in self._named:
            self.end_session()  # the leader takes for known what earlier responses have reported

    def remove(self, partition: Partition) -> None:
        """Fetch a partition no longer."""
        key = self._keys.pop(partition, None)
        if key is not None and self._followed[key].partition is partition:
            del self._followed[key]
            self._changed.pop(key, None)
            if key in self._named:
                self._forgotten[key] = self._named[key]

    def moved(self, partition: Partition) -> None:
        """Report the position of a partition with the next request."""
        key = self._keys.get(partition)
        if key is not None:
            self._followed[key].position = None
            self._changed[key] = None

    def __contains__(self, partition: Partition) -> bool:
        return partition in self._keys

    def is_ready(self, partition: Partition) -> bool:
        """Return whether the position of a partition may be reported: its records are synced, if they have to be."""
        key = self._keys.get(partition)
        if key is None:
            return True
        following = self._followed[key].following
        following.syncs_first = not partition.sync_interval_ms  # the durability may have changed
        return following.is_ready(partition.log)

    def unready(self) -> list[Partition]:
        """Return the partitions of the next request whose position may not be reported yet."""
        keys = self._followed if self._session_id == _NO_SESSION else self._changed
        changed = [self._followed[key].partition for key in keys]
        return [partition for partition in changed if not self.is_ready(partition)]

    # Requests

    def request(self, broker_id: int, broker_epoch: int, wait_ms: int) -> FetchRequest:
        """Return the next request: of all partitions if there is no session, otherwise of what has changed."""
        if self._session_id == _NO_SESSION:
            self._changed = dict.fromkeys(self._followed)
            self._forgotten.clear()
            self._named.clear()
        wanted = self._topics(self._changed)
        self._changed = {}
        forgotten, self._forgotten = self._forgotten, {}
        return FetchRequest(
            replica_id=broker_id,
            replica_state=ReplicaState(replica_id=broker_id, replica_epoch=broker_epoch),
            max_wait_ms=wait_ms,
            min_bytes=1,
            max_bytes=self._response_bytes,
            session_id=self._session_id,
            session_epoch=self._epoch,
            topics=wanted,
            forgotten_topics_data=_forgotten_topics(forgotten),
        )

    def _topics(self, keys: Iterable[Key]) -> list[FetchTopic]:
        topics: dict[bytes, FetchTopic] = {}
        for topic_id, index in keys:
            each = self._followed[topic_id, index]
            log, name = each.partition.log, topic_of(each.partition.topic_partition)
            position = each.position = each.following.begin(log)
            topic = topics.get(topic_id)
            if topic is None:
                topic = topics[topic_id] = FetchTopic(topic=name, topic_id=topic_id)
            topic.partitions.append(
                FetchPartition(
                    partition=index,
                    current_leader_epoch=position.leader_epoch,
                    fetch_offset=position.fetch_offset,
                    last_fetched_epoch=position.last_fetched_epoch,
                    log_start_offset=position.log_start_offset,
                    partition_max_bytes=self._partition_bytes,
                )
            )
            self._named[topic_id, index] = name
        return list(topics.values())

    # Responses

    def end_session(self) -> None:
        """Send all partitions with the next request: the leader may not have received the last one."""
        self._session_id, self._epoch = _NO_SESSION, _NEW_SESSION

    def received(self, response: FetchResponse) -> Iterator[tuple[Partition, PartitionData]]:
        """Yield the partitions in a response. The session continues with the next request."""
        if response.session_id == _NO_SESSION:
            self.end_session()
        else:
            self._session_id = response.session_id
            self._epoch = self._epoch + 1 if self._epoch < _LAST_EPOCH else 1
        for topic in response.responses:
            for data in topic.partitions:
                each = self._find(topic.topic, topic.topic_id, data.partition_index)
                if each is not None:
                    yield each.partition, data

    def _find(self, name: str, topic_id: bytes, index: int) -> _Followed | None:
        if any(topic_id):
            return self._followed.get((topic_id, index))
        for (_, number), each in self._followed.items():
            if number == index and topic_of(each.partition.topic_partition) == name:
                return each
        return None

    def decide(self, partition: Partition, fetched: Fetched) -> Decision | None:
        """Return what a response does to a partition; None if the response is late."""
        each = self._followed[self._keys[partition]]
        if each.position is None:
            return None
        return each.following.decide(each.position, fetched, partition.log)


def fetched_index(name: TopicPartition) -> int:
    """Return the number of a partition in fetches of followers. A schedule has the complement of its partition's.

    So both have the same topic, and a schedule has a negative number.
    """
    return ~name.partition if is_schedule(name) else name.partition


def _forgotten_topics(forgotten: dict[Key, str]) -> list[ForgottenTopic]:
    topics: dict[bytes, ForgottenTopic] = {}
    for (topic_id, index), name in forgotten.items():
        topic = topics.get(topic_id)
        if topic is None:
            topic = topics[topic_id] = ForgottenTopic(topic=name, topic_id=topic_id)
        topic.partitions.append(index)
    return list(topics.values())
