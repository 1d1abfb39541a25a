"""Everything that is wrong with pipelines, by their declarations, the brokers and Spark, in one list."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from headrace.errors import ConfigError, HeadraceError
from headrace.pipelines.checking import look
from headrace.pipelines.declaration import Pipeline
from headrace.pipelines.plan import DefaultCluster, Plan, PlanError, Problem
from headrace.pipelines.topics import look_at_topics

if TYPE_CHECKING:
    from headrace.pipelines.session import Sessions


def plan_all(
    pipelines: Sequence[Pipeline],
    connection: DefaultCluster,
    checkpoints: str | None = None,
    trigger: str | None = None,
    sessions: Sessions | None = None,
) -> list[Plan]:
    """Return the plans of pipelines.

    Args:
        pipelines: All that are to run together.
        connection: The cluster of their topics.
        checkpoints: The directory of the checkpoints that are not declared.
        trigger: In place of what is declared.
        sessions: Where frames are looked at; without, nothing is said of columns.

    Raises:
        PlanError: With everything that is wrong; what one stage finds does not hide what another would.
        TransportError: No broker answers, and nothing else is known to be wrong.
    """
    found = look(pipelines, connection, checkpoints, trigger)
    plans, problems = found.plans, found.problems
    try:
        plans, missing = look_at_topics(plans, connection)
        problems = [*problems, *missing]
    except HeadraceError as error:
        if not problems:
            raise
        problems = [*problems, Problem(None, f"nothing is known of topics: {error}")]
    if sessions is not None:
        from headrace.pipelines.running import look_at_frames

        sound = [each for each in plans if each.name not in found.unsound]
        try:
            plans, wrong = look_at_frames(sessions, sound)
            problems = [*problems, *wrong]
        except ConfigError as error:
            if not problems:
                raise
            problems = [*problems, Problem(None, f"nothing is known of columns: {error}")]
    if problems:
        order = {id(each): number for number, each in enumerate(pipelines)}
        raise PlanError(sorted(problems, key=lambda each: order.get(id(each.pipeline), len(order))))
    return plans
