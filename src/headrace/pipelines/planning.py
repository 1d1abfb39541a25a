"""Plan pipelines and collect their problems: from the declarations, the brokers and Spark, in one list."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from headrace.errors import ConfigError, HeadraceError
from headrace.pipelines.checks.declarations import examine_declarations
from headrace.pipelines.checks.topics import examine_topics
from headrace.pipelines.declaration import Pipeline
from headrace.pipelines.plan import DefaultCluster, Plan, PlanError, Problem

if TYPE_CHECKING:
    from headrace.pipelines.running.session import Sessions


def plan_all(
    pipelines: Sequence[Pipeline],
    connection: DefaultCluster,
    checkpoints: str | None = None,
    trigger: str | None = None,
    sessions: Sessions | None = None,
) -> list[Plan]:
    """Plan pipelines.

    Args:
        pipelines: All pipelines of the run.
        connection: The cluster of their topics.
        checkpoints: The directory for checkpoints that the pipelines do not declare.
        trigger: Replaces the declared triggers; None keeps them.
        sessions: The session in which Spark analyses the frames; None leaves columns unchecked.

    Raises:
        PlanError: The pipelines have problems. The error has the problems of all stages.
        TransportError: No broker answers, and no other problem is known.
    """
    found = examine_declarations(pipelines, connection, checkpoints, trigger)
    plans, problems = found.plans, found.problems
    try:
        plans, missing = examine_topics(plans, connection)
        problems = [*problems, *missing]
    except HeadraceError as error:
        if not problems:
            raise
        problems = [*problems, Problem(None, f"the topics cannot be checked: {error}")]
    if sessions is not None:
        from headrace.pipelines.running.runner import examine_frames

        sound = [each for each in plans if each.name not in found.unsound]
        try:
            plans, wrong = examine_frames(sessions, sound)
            problems = [*problems, *wrong]
        except ConfigError as error:
            if not problems:
                raise
            problems = [*problems, Problem(None, f"the columns cannot be checked: {error}")]
    if problems:
        order = {id(each): number for number, each in enumerate(pipelines)}
        raise PlanError(sorted(problems, key=lambda each: order.get(id(each.pipeline), len(order))))
    return plans
