"""The partitioners that all producers of an embedded broker share, and what is kept of them in the broker's metadata.

Whose turn it is in a topic is one position, not one for each producer. It is written down when the broker is closed. A
broker that is killed has written nothing, so what can be counted is counted anew: a partitioner with a method `begin`
is told how many records the topic has had.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec

from headrace.broker.partitions.topic import Topic
from headrace.broker.partitions.topics import Topics
from headrace.clients.partitioners import Partitioner
from headrace.errors import StorageError
from headrace.ports import Delete, MetadataStore, Put
from headrace.registers import Named

PARTITIONERS: Final = "partitioner/"
"""With the topic's id in hexadecimal: the state of its partitioner."""


class _State(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The stored value: which partitioner, and what its `dump` returned."""

    name: str
    state: bytes
    format: int = 1
    parameters: str | msgspec.UnsetType = msgspec.UNSET
    """With which it was made; not written if there are none."""


class TopicPartitioners:
    """One partitioner for each topic whose partitioner has a state."""

    def __init__(self, store: MetadataStore) -> None:
        """Keep the states in a broker's metadata."""
        self._store = store
        self._shared: dict[bytes, tuple[Named, Partitioner]] = {}

    def share(self, topic: Topic, named: Named, new: Partitioner) -> Partitioner:
        """Return the partitioner of a topic.

        Args:
            topic: The topic.
            named: What the topic's metadata call its partitioner, and its parameters.
            new: A new one of them, which is taken if there is none.

        Raises:
            StorageError: What was kept cannot be read.
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
            new.begin(sum(each.log.log_end_offset for each in topic.partitions if each is not None))
        self._shared[topic.topic_id] = named, new
        return new

    def _kept(self, topic: Topic, named: Named, *, once: bool) -> bytes | None:
        entry = self._store.get(_key(topic.topic_id))
        if entry is None:
            return None
        try:
            found = msgspec.json.decode(entry.value, type=_State)
        except msgspec.MsgspecError as error:
            raise StorageError(f"{entry.key}: {error}") from error
        if once:  # should the broker be killed, it is out of date
            self._store.commit([], [Delete(entry.key)])
        return found.state if (found.name, found.parameters or "") == named[:2] else None

    def save(self, topics: Topics) -> None:
        """Write all states down, and forget those of topics that are gone."""
        changes: list[Put | Delete] = [
            Delete(entry.key)
            for entry in self._store.list(PARTITIONERS)
            if topics.by_id(bytes.fromhex(entry.key.removeprefix(PARTITIONERS))) is None
        ]
        for topic_id, (named, partitioner) in self._shared.items():
            dump: Callable[[], bytes] = partitioner.dump  # type: ignore[attr-defined]  # only those with it are shared
            if topics.by_id(topic_id) is not None:
                state = _State(named.name, dump(), parameters=named.parameters or msgspec.UNSET)
                value = msgspec.json.encode(state)
                changes.append(Put(_key(topic_id), value))
        for first in range(0, len(changes), _AT_ONCE):
            self._store.commit([], changes[first : first + _AT_ONCE])


_AT_ONCE: Final = 100


def _key(topic_id: bytes) -> str:
    return f"{PARTITIONERS}{topic_id.hex()}"
