"""The topics as the group coordinator sees them, and the assignors in the configuration."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from importlib import metadata
from typing import Final, NamedTuple

from headrace.broker.access.authorizer import Authorizer
from headrace.broker.bounds.expressions import INSTALL_RE2, Expression, are_evaluated
from headrace.broker.partitions.topics import Topics
from headrace.broker.session import Session
from headrace.broker.waiting.steps import Steps, Work
from headrace.core.coordinator.state.assignors import OWN_ASSIGNORS, ServerAssignor
from headrace.core.coordinator.state.topics import Matches, TopicInfo
from headrace.deferred import Deferred
from headrace.errors import ApiError, ConfigError, ErrorCode
from headrace.ports import Journal

_PIECE: Final = 300_000
"""The cost after which a step may end."""
_REMEMBERED_LIMIT: Final = 1000
_REMEMBERED_NAMES_LIMIT: Final = 1_000_000
_EVALUATED_LIMIT: Final = 100
"""The greatest number of expressions that are evaluated at a time."""
ASSIGNORS_ENTRY_POINTS: Final = "headrace.group_assignors"


class GroupTopics:
    """Implements `headrace.core.coordinator.state.topics.TopicsView` with the broker's topics.

    Regular expressions have bounds (`headrace.broker.bounds.expressions`). A long evaluation takes several steps,
    between which other requests are handled. Until it is complete, the previous result counts. The topics that an
    expression matches are remembered for all groups and members with that expression.
    """

    __slots__ = (
        "_authorizer",
        "_evaluated",
        "_journal",
        "_known",
        "_names_count",
        "_session",
        "_steps",
        "_topics",
        "_warned",
    )

    def __init__(
        self, topics: Topics, authorizer: Authorizer, journal: Journal, steps: Steps
    ) -> None:
        self._topics = topics
        self._authorizer = authorizer
        self._journal = journal
        self._steps = steps
        self._session = Session(is_local=True)
        """The session that evaluates expressions. It belongs to no connection, so that no connection waits."""
        self._warned = False
        """Whether the log has the warning that this broker cannot evaluate expressions."""
        self._known: OrderedDict[str, _Known] = OrderedDict()
        """The topics that each expression matches. The most recently used expression is the last."""
        self._names_count = 0
        """The number of names in `_known`."""
        self._evaluated: set[str] = set()
        """The expressions that are being evaluated."""

    @property
    def changes(self) -> int:
        """A number that changes when a topic is created, grown or deleted, or when ACLs change."""
        return self._topics.changes + self._authorizer.changes

    def get(self, name: str) -> TopicInfo | None:
        """Return a topic, or None."""
        topic = self._topics.get(name)
        return None if topic is None else TopicInfo(topic.topic_id, topic.partitions_count)

    def name_of(self, topic_id: bytes) -> str | None:
        """Return the name of the topic with an id; None if there is no such topic."""
        topic = self._topics.by_id(topic_id)
        return None if topic is None else topic.name

    def matching(self, regex: str) -> Matches:
        """Return the topics whose whole name a regular expression matches, as far as they are known.

        Raises:
            ApiError: INVALID_REGULAR_EXPRESSION, with the reason. Or COORDINATOR_LOAD_IN_PROGRESS: very many
                expressions are being evaluated.
        """
        if not are_evaluated() and not self._warned:
            self._warned = True
            self._journal.warning("regular_expressions_not_evaluated", install=INSTALL_RE2)
        known = self._known.get(regex)
        if (known is None or known.changes != self._topics.changes) and (
            regex not in self._evaluated
        ):
            known = self._evaluate(regex)
        if known is None:
            return Matches(None, is_current=False)
        self._known.move_to_end(regex)
        return Matches(known.names, is_current=known.changes == self._topics.changes)

    def _evaluate(self, regex: str) -> _Known | None:
        """Begin to evaluate an expression. Return the topics that are known to match."""
        names = [topic.name for topic in self._topics]
        expression = Expression(regex, "SubscribedTopicRegex", "subscribe to topics by name")
        expression.check(sum(map(len, names)))
        if len(self._evaluated) >= _EVALUATED_LIMIT:
            raise ApiError(
                ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
                "the broker is evaluating very many regular expressions: retry later",
            )
        self._evaluated.add(regex)
        changes = self._topics.changes
        reply = self._steps.run(_matching(expression, names), self._session)
        if isinstance(reply, Deferred):
            reply.on_done(lambda found: self._remember(regex, _Known(found, changes)))
        else:
            self._remember(regex, _Known(reply, changes))
        return self._known.get(regex)

    def _remember(self, regex: str, known: _Known) -> None:
        self._evaluated.discard(regex)
        self._forget(regex)
        while self._known and (
            len(self._known) >= _REMEMBERED_LIMIT
            or self._names_count + len(known.names) > _REMEMBERED_NAMES_LIMIT
        ):
            self._forget(next(iter(self._known)))
        self._known[regex] = known
        self._names_count += len(known.names)

    def _forget(self, regex: str) -> None:
        known = self._known.pop(regex, None)
        if known is not None:
            self._names_count -= len(known.names)


class _Known(NamedTuple):
    """The topics that one expression matches."""

    names: tuple[str, ...]
    changes: int
    """The value of `changes` at which the evaluation began."""


def _matching(expression: Expression, names: Sequence[str]) -> Work[tuple[str, ...]]:
    """Match names in pieces."""
    found: list[str] = []
    piece = 0
    for name in names:
        if expression.matches(name):
            found.append(name)
        piece += expression.cost(name)
        if piece >= _PIECE:
            yield piece
            piece = 0
    return tuple(found)


def load_assignors(names: str) -> Mapping[str, ServerAssignor]:
    """Return the assignors of a comma-separated list. The first one is the default.

    Installed packages can offer further assignors as entry points of the group `headrace.group_assignors`.

    Raises:
        ConfigError: An assignor does not exist, or its class cannot be instantiated.
    """
    assignors: dict[str, ServerAssignor] = {}
    for name in filter(None, (part.strip() for part in names.split(","))):
        assignors[name] = OWN_ASSIGNORS.get(name) or _users_assignor(name)
    if not assignors:
        raise ConfigError("group.consumer.assignors: at least one assignor is needed")
    return assignors


def _users_assignor(name: str) -> ServerAssignor:
    found = metadata.entry_points(group=ASSIGNORS_ENTRY_POINTS, name=name)
    if not found:
        raise ConfigError(
            f"group.consumer.assignors: there is no assignor {name!r}; Headrace has {', '.join(OWN_ASSIGNORS)}, and "
            f"installed packages may offer others as entry points of the group {ASSIGNORS_ENTRY_POINTS!r}"
        )
    try:
        assignor: ServerAssignor = next(iter(found)).load()()
    except Exception as error:
        raise ConfigError(
            f"group.consumer.assignors: {name!r} cannot be instantiated: {error!r}"
        ) from error
    assignor.name = name
    return assignor
