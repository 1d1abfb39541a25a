"""The partitioners with a state, which all producers of an embedded broker share, and their state in the metadata.

For example, the turn of a round-robin partitioner belongs to the topic and not to a producer. The broker stores the
state when it is closed. A broker that was killed has stored no state: then a partitioner with a method `begin` gets the
number of records that the topic has had.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec

from headrace.broker.metadata.metadata_writer import MetadataWriter
from headrace.broker.partitions.local_partitions import LocalPartitions
from headrace.broker.partitions.topic import Topic
from headrace.broker.partitions.topics import Topics
from headrace.clients.partitioners import Partitioner
from headrace.errors import StorageError
from headrace.ports import Delete, Put
from headrace.registers import Named

PARTITIONERS: Final = "partitioner/"
"""The prefix of metadata keys. The topic id in hexadecimal follows; the value is the state of its partitioner."""


class _State(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The stored value: the name of the partitioner, and the result of its `dump`."""

    name: str
    state: bytes
    format: int = 1
    parameters: str | msgspec.UnsetType = msgspec.UNSET
    """The parameters of the partitioner as JSON. They are not written if there are none."""


class TopicPartitioners:
    """One partitioner for each topic whose partitioner has a state."""

    def __init__(self, metadata: MetadataWriter) -> None:
        """Store the states in the metadata of a broker."""
        self._metadata = metadata
        self._shared: dict[bytes, tuple[Named, Partitioner]] = {}

    def share(
        self, topic: Topic, partitions: LocalPartitions, named: Named, new: Partitioner
    ) -> Partitioner:
        """Return the partitioner of a topic.

        Args:
            topic: The topic.
            partitions: The partitions of all topics.
            named: The name and the parameters of the partitioner, from the topic's metadata.
            new: A new partitioner, which is used if the topic has none yet.

        Raises:
            StorageError: The stored state cannot be read.
        """
        load: Callable[[bytes], object] | None = getattr(new, "load", None)
        if load is None or not hasattr(new, "dump"):
            return new
        known = self._shared.get(topic.topic_id)
        if known is not None and known[0] == named:
            return known[1]
        kept = self._kept(topic, named, once=hasattr(new, "begin"))
        if kept is not None:
            load(kept)
        elif hasattr(new, "begin"):
            served = filter(None, partitions.of(topic))
            new.begin(sum(each.log.log_end_offset for each in served))
        self._shared[topic.topic_id] = named, new
        return new

    def _kept(self, topic: Topic, named: Named, *, once: bool) -> bytes | None:
        entry = self._metadata.image.get(_key(topic.topic_id))
        if entry is None:
            return None
        try:
            found = msgspec.json.decode(entry.value, type=_State)
        except msgspec.MsgspecError as error:
            raise StorageError(f"{entry.key}: {error}") from error
        if once:  # if the broker is killed later, this state is out of date
            self._metadata.commit_and_wait([], [Delete(entry.key)])
        return found.state if (found.name, found.parameters or "") == named[:2] else None

    def save(self, topics: Topics) -> None:
        """Store all states, and delete the states of deleted topics."""
        changes: list[Put | Delete] = [
            Delete(entry.key)
            for entry in self._metadata.image.list(PARTITIONERS)
            if topics.by_id(bytes.fromhex(entry.key.removeprefix(PARTITIONERS))) is None
        ]
        for topic_id, (named, partitioner) in self._shared.items():
            dump: Callable[[], bytes] = partitioner.dump  # type: ignore[attr-defined]  # only those with it are shared
            if topics.by_id(topic_id) is not None:
                state = _State(named.name, dump(), parameters=named.parameters or msgspec.UNSET)
                value = msgspec.json.encode(state)
                changes.append(Put(_key(topic_id), value))
        for first in range(0, len(changes), _AT_ONCE):
            self._metadata.commit_and_wait([], changes[first : first + _AT_ONCE])


_AT_ONCE: Final = 90
"""The number of changes in one commit of the metadata store, which adds the broker's own entry."""


def _key(topic_id: bytes) -> str:
    return f"{PARTITIONERS}{topic_id.hex()}"
