"""The serdes of topics: those that the program gave to the consumer, or those that topics name."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, Protocol

from headrace.clients.consumer.background import Background
from headrace.clients.consumer.reports import Reports
from headrace.clients.engine import Engine
from headrace.clients.flows.cluster import NO_TOPIC_ID
from headrace.clients.flows.effects import Flow
from headrace.clients.flows.topic_settings import hidden_settings, topic_settings
from headrace.errors import ConfigError, HeadraceError
from headrace.registers import Named
from headrace.serdes.plain import BytesSerde

Decode = Callable[[bytes], Any]


class Deserializer(Protocol):
    """Turns bytes into values."""

    def deserialize(self, data: bytes) -> Any:
        """Return the value. Any exception means that the bytes cannot be decoded."""


Resolve = Callable[[Named], Deserializer]


class Decoders:
    """Two functions for each topic, which decode keys and values. None leaves bytes as they are."""

    def __init__(
        self,
        engine: Engine,
        key_serde: Deserializer | None,
        serde: Deserializer | None,
        resolve: Resolve | None,
        reports: Reports,
    ) -> None:
        """Prepare the decoders of a consumer.

        Args:
            engine: The consumer's engine.
            key_serde: The serde for the keys of all topics. None is the serde that each topic names.
            serde: The serde for the values of all topics. None is the serde that each topic names.
            resolve: Returns the serde that a topic names. None is bytes for topics without a given serde.
            reports: Receives errors about serdes that are unknown here or may not be read.
        """
        self._engine = engine
        self._key = _decode_of(key_serde)
        self._value = _decode_of(serde)
        self._given = key_serde is not None, serde is not None
        self._resolve = resolve if not all(self._given) else None
        self._reports = reports
        self._background = Background(engine)
        self._known: dict[str, tuple[Decode | None, Decode | None]] = {}
        self._ids: dict[str, bytes] = {}
        """The ids of the topics whose serdes are known."""

    def of(self, topic: str) -> tuple[Decode | None, Decode | None] | None:
        """Return the two functions of a topic; None while they are being looked up."""
        if self._resolve is None:
            return self._key, self._value
        return self._known.get(topic)

    def look_up(self, topics: Collection[str]) -> None:
        """Look up the serdes of topics that are unknown, or that were created again."""
        if self._resolve is None:
            return
        for topic in {*topics} & self._known.keys():
            self._forget_if_recreated(topic)
        if self._background.running:
            return
        missing = sorted(topic for topic in set(topics) if topic not in self._known)
        if missing:
            self._background.start(self._ask(missing), self._looked_up)

    def _forget_if_recreated(self, topic: str) -> None:
        topic_id = self._engine.state.metadata.topic_id(topic)
        if topic_id == NO_TOPIC_ID or self._ids.setdefault(topic, topic_id) == topic_id:
            return
        del self._known[topic], self._ids[topic]
        self._engine.state.topic_settings.pop(topic, None)

    def stop(self) -> None:
        """Stop looking up serdes."""
        self._background.stop()

    def _looked_up(self, outcome: object) -> None:
        if isinstance(outcome, HeadraceError):
            self._reports.failed(outcome)

    def _ask(self, topics: list[str]) -> Flow[None]:
        for topic in topics:
            named = yield from topic_settings(self._engine.state, topic)
            if not named.may_read:
                missing = [
                    name
                    for name, given in zip(("key_serde", "serde"), self._given, strict=True)
                    if not given
                ]
                self._reports.warn(hidden_settings(topic, "consumer", ", ".join(missing)))
            try:
                self._known[topic] = (
                    self._choose(0, self._key, named.key_serde),
                    self._choose(1, self._value, named.serde),
                )
            except ConfigError as error:
                raise ConfigError(
                    f"topic {topic!r} names its serdes in its configuration: {error}. To do without them, give the "
                    "consumer its own: serde='bytes', key_serde='bytes'"
                ) from error

    def _choose(self, index: int, given: Decode | None, named: Named | None) -> Decode | None:
        if self._given[index] or named is None:
            return given
        assert self._resolve is not None, "only then topics are asked"
        return _decode_of(self._resolve(named))


def _decode_of(serde: Deserializer | None) -> Decode | None:
    if serde is None or isinstance(serde, BytesSerde):
        return None
    return serde.deserialize
