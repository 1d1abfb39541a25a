"""Check that the topics of plans exist, and create missing topics if the pipelines declare that."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Final

from headrace.clients.blocking import BlockingClient, NewTopic
from headrace.errors import ApiError, ErrorCode, HeadraceError
from headrace.pipelines.declaration import Topic
from headrace.pipelines.options import is_elsewhere, selects
from headrace.pipelines.plan import DefaultCluster, Plan, PlanError, Problem

DLQ: Final = "dlq:"
_ABSENT: Final = frozenset(
    {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.INVALID_TOPIC_EXCEPTION}
)


def check_topics(plans: Sequence[Plan], connection: DefaultCluster) -> list[Plan]:
    """Return the plans with the topics that must be created.

    Topics whose options name another cluster are not checked here; Spark checks them.

    Raises:
        PlanError: A topic is missing that no pipeline creates.
        TransportError: No broker answers.
    """
    found, problems = examine_topics(plans, connection)
    if problems:
        raise PlanError(problems)
    return found


def examine_topics(
    plans: Sequence[Plan], connection: DefaultCluster
) -> tuple[list[Plan], list[Problem]]:
    """Return the plans with the topics that must be created, and a problem for each missing topic without `create`.

    Raises:
        TransportError: No broker answers.
    """
    names = {plan.name: _names(plan) for plan in plans}
    with _client(connection) as client:
        existing = _existing(client, {name for each in names.values() for name in each})
    created = {new.name for new in _declared(plans)}
    problems = [
        Problem(plan.pipeline, _missing(name))
        for plan in plans
        for name in names[plan.name]
        if name not in existing | created
    ]
    found = [
        replace(plan, creates=tuple(name for name in names[plan.name] if name not in existing))
        for plan in plans
    ]
    return found, problems


def create_topics(plans: Sequence[Plan], connection: DefaultCluster) -> None:
    """Create the missing topics of plans.

    Raises:
        ApiError: The broker refuses the creation.
    """
    missing = {name for plan in plans for name in plan.creates}
    new = {each.name: each for each in _declared(plans) if each.name in missing}
    if not new:
        return
    with _client(connection) as client:
        for name, error in client.create_topics(list(new.values())).items():
            if error is not None and error.code is not ErrorCode.TOPIC_ALREADY_EXISTS:
                raise ApiError.for_code(error.code, f"creating topic {name}: {error.message}")


def _declared(plans: Sequence[Plan]) -> Iterator[NewTopic]:
    """Yield the topics that may be created. Dead-letter topics need no `create`."""
    for plan in plans:
        yield from (NewTopic(name, 1) for name in _dead_letters(plan))
    for plan in plans:
        for topic in _topics(plan):
            if topic.create is not None:
                yield NewTopic(topic.name, topic.create, configs=topic.configs)


def _missing(name: str) -> str:
    return f"there is no topic {name}: create it, or declare topic({name!r}, create=PARTITIONS)"


def _topics(plan: Plan) -> Iterator[Topic]:
    for end in (*plan.sources.values(), plan.sink_topic):
        if isinstance(end, Topic) and not is_elsewhere(end):
            yield end


def _names(plan: Plan) -> list[str]:
    """Return the topics that must exist, without those of a pattern or an assignment, which the source checks."""
    names: dict[str, None] = dict.fromkeys(_dead_letters(plan))
    for topic in _topics(plan):
        if not selects(topic):
            names |= dict.fromkeys(each.strip() for each in topic.name.split(","))
    return list(names)


def _dead_letters(plan: Plan) -> list[str]:
    return [
        topic.on_error.removeprefix(DLQ).strip()
        for topic in plan.sources.values()
        if isinstance(topic, Topic) and topic.on_error.startswith(DLQ)
    ]


def _existing(client: BlockingClient, names: set[str]) -> set[str]:
    found = client.metadata(sorted(names)).topics if names else {}
    for name, topic in found.items():
        if topic.error not in {*_ABSENT, ErrorCode.NONE, ErrorCode.LEADER_NOT_AVAILABLE}:
            raise ApiError.for_code(topic.error, f"topic {name}")
    return {name for name, topic in found.items() if topic.error not in _ABSENT}


def _client(connection: DefaultCluster) -> BlockingClient:
    properties: dict[str, Any] = dict(connection.properties)
    client = BlockingClient(connection.bootstrap, **properties)
    try:
        client.connect()
    except HeadraceError:
        client.close()
        raise
    return client
