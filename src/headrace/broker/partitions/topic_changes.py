"""The changes of topics that the image has brought: one at a time for each topic name, in steps.

The image only registers a change (`register`). The broker begins the registered changes when the image has applied all
notifications: a request right after its own commit (`begin`), and `Topics.tick` for the commits of other brokers.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from headrace.broker.waiting.steps import Steps, Work
from headrace.core.coordinator.runtime import Reply
from headrace.deferred import Deferred
from headrace.errors import ApiError, StorageError
from headrace.ports import Journal

T = TypeVar("T")
Change = Callable[[int], Work[Any]]
"""Returns the work of a change, from the time."""
Run = Callable[[Work[Any]], Any]
"""Runs the work of a change, and returns its result or a deferred one."""


class TopicChanges:
    """The creations, growths and deletions of topics, by topic name."""

    __slots__ = ("_changing", "_journal", "_registered", "_steps")

    def __init__(self, steps: Steps, journal: Journal) -> None:
        self._steps = steps
        self._journal = journal
        self._registered: list[tuple[str, Change]] = []
        """The changes that have not begun, with the names of the topics."""
        self._changing: dict[str, Deferred[Any]] = {}
        """The result of the last change of each topic name, while it is not complete."""

    def __contains__(self, name: str) -> bool:
        return name in self._changing

    def wait(self, name: str) -> Work[None]:
        """Wait until no other request is changing the topic of a name."""
        while (change := self._changing.get(name)) is not None:
            yield from _end_of(change)

    def register(self, name: str, change: Change) -> None:
        """Register a change, which the image has brought. It begins with the next call of `begin`."""
        self._registered.append((name, change))

    def begin(self, now_ms: int, name: str = "", run: Run | None = None) -> Any:
        """Begin the registered changes.

        Args:
            now_ms: The time.
            name: The name of the topic that the caller has changed; "" for none.
            run: Runs the change of the caller. None to run the change in steps, like the other changes.

        Returns:
            The result of the change of the topic `name`, or a deferred result; None if it had begun before.

        Raises:
            ApiError: The change of the topic `name` has failed.
        """
        result: Any = None
        registered, self._registered = self._registered, []
        for changed, change in registered:
            work = change(now_ms)
            if changed == name:
                result = self._run(name, work) if run is None else run(work)
            else:
                try:
                    self._run(changed, work)
                except (ApiError, StorageError) as error:
                    self._journal.error("topic_change_failed", topic=changed, error=str(error))
        return result

    def _run(self, name: str, work: Work[T]) -> Reply[T]:
        """Change the topic of a name in steps. The work also continues if the connection of the client is closed."""
        earlier = self._changing.get(name)

        def changing() -> Work[T]:
            try:
                if earlier is not None:
                    yield from _end_of(earlier)
                return (yield from work)
            finally:
                if reply is not None and self._changing.get(name) is reply:
                    del self._changing[name]

        reply: Reply[T] | None = None
        reply = self._steps.run(changing(), finishes=True)
        if isinstance(reply, Deferred):
            self._changing[name] = reply
        return reply


def _end_of(change: Deferred[Any]) -> Work[None]:
    # A deferred of its own: the caller may cancel it, and the change must go on.
    done: Deferred[None] = Deferred()
    change.on_done(partial(_resolve, done))
    yield done


def _resolve(done: Deferred[None], _: object) -> None:
    done.resolve(None)
