"""The changes of topics that take several steps: one at a time for each topic name."""

from __future__ import annotations

from functools import partial

from headrace.broker.session import Session
from headrace.broker.waiting.steps import Steps, Work, logged
from headrace.deferred import Deferred
from headrace.ports import Journal


class TopicChanges:
    """The creations, growths and deletions of topics that are being done in steps, by topic name."""

    __slots__ = ("_changing", "_journal", "_steps")

    def __init__(self, steps: Steps, journal: Journal) -> None:
        self._steps = steps
        self._journal = journal
        self._changing: dict[str, Deferred[None]] = {}
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

    def run(self, name: str, work: Work[None]) -> None:
        """Change the topic of a name in steps. An exception is logged."""

        def changing() -> Work[None]:
            try:
                yield from work
            finally:
                self._changing.pop(name, None)

        change = logged(changing(), f"change of topic {name}", self._journal)
        reply = self._steps.run(change, Session(is_local=True), finishes=True)
        if isinstance(reply, Deferred):
            self._changing[name] = reply


def _resolve(done: Deferred[None], _: object) -> None:
    done.resolve(None)
