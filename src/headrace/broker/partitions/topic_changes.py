"""The changes of topics that take several steps: one at a time for each topic name."""

from __future__ import annotations

from functools import partial
from typing import Any, TypeVar

from headrace.broker.waiting.steps import Steps, Work
from headrace.core.coordinator.runtime import Reply
from headrace.deferred import Deferred

T = TypeVar("T")


class TopicChanges:
    """The creations, growths and deletions of topics that are being done in steps, by topic name."""

    __slots__ = ("_changing", "_steps")

    def __init__(self, steps: Steps) -> None:
        self._steps = steps
        self._changing: dict[str, Deferred[Any]] = {}
        """The result of each change that is not complete."""

    def __contains__(self, name: str) -> bool:
        return name in self._changing

    def wait(self, name: str) -> Work[None]:
        """Wait until no other request is changing the topic of a name."""
        while (change := self._changing.get(name)) is not None:
            # A deferred of its own: the caller may cancel it, and the change must go on.
            done: Deferred[None] = Deferred()
            change.on_done(partial(_resolve, done))
            yield done

    def run(self, name: str, work: Work[T]) -> Reply[T]:
        """Change the topic of a name in steps. The work also continues if the connection of the client is closed."""

        def changing() -> Work[T]:
            try:
                return (yield from work)
            finally:
                self._changing.pop(name, None)

        reply = self._steps.run(changing(), finishes=True)
        if isinstance(reply, Deferred):
            self._changing[name] = reply
        return reply


def _resolve(done: Deferred[None], _: object) -> None:
    done.resolve(None)
