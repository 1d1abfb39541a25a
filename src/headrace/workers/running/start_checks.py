"""The checks before a worker starts: whether it may use its topics and its group."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from headrace.clients.flows.rights import Rights
from headrace.errors import ApiError, ErrorCode, HeadraceError, TransportError
from headrace.security.acls import Operation
from headrace.workers.deduplication.declared import SeenTopic
from headrace.workers.output.outlet import Outlet
from headrace.workers.settings import WorkerSettings

_ACCEPTABLE: Final = frozenset({ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION})
"""Answers that do not stop the start: the worker waits for a missing topic, or creates it."""
_FINAL: Final = frozenset(
    {
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        ErrorCode.GROUP_AUTHORIZATION_FAILED,
        ErrorCode.INVALID_TOPIC_EXCEPTION,
        ErrorCode.INVALID_GROUP_ID,
    }
)
"""Answers that stay the same until a person changes something. After other errors the running worker retries."""


async def problems_of(settings: WorkerSettings, outlet: Outlet) -> list[HeadraceError]:
    """Return why a worker cannot use its topics and its group. The checks change nothing.

    Raises:
        TransportError: No broker answers. A worker that reads streams may need no broker, so it gets no error.
    """
    reads = {} if settings.streams is not None else dict.fromkeys(settings.topics, "read")
    writes = dict.fromkeys(_destinations(settings), "write to")
    if (keys := _topic_with_keys(settings)) is not None:
        reads[keys] = "read"
    found: list[HeadraceError] = []
    try:
        if reads or writes:
            rights = await outlet.rights_on_topics({*reads, *writes})
            for uses in (reads, writes):
                found += [
                    problem
                    for topic, use in uses.items()
                    if (
                        problem := _topic_problem(settings, topic, use, rights.get(topic, Rights()))
                    )
                ]
    except TransportError:
        if settings.streams is None:
            raise
    if settings.streams is None:
        problem = await _group_problem(settings, outlet)
        found += [] if problem is None else [problem]
    return found


def _destinations(settings: WorkerSettings) -> Iterator[str]:
    """Yield the topics that a worker writes to, as far as the settings name them."""
    yield from (each.topic for each in settings.publications)
    yield from settings.retry_topics()
    if isinstance(settings.dead_letter, str):
        if "://" not in settings.dead_letter:
            yield settings.dead_letter
    elif settings.dead_letter:
        yield from map(settings.dead_letter_topic, settings.homes())
    if (keys := _topic_with_keys(settings)) is not None:
        yield keys


def _topic_with_keys(settings: WorkerSettings) -> str | None:
    """Return the topic of `seen=`; None if there is none."""
    if isinstance(settings.seen, SeenTopic) and settings.dedupe is not None:
        return settings.seen.name_for(settings.group, settings.name)
    return None


def _topic_problem(
    settings: WorkerSettings, topic: str, use: str, rights: Rights
) -> HeadraceError | None:
    needed = Operation.READ if use == "read" else Operation.WRITE
    code = rights.error
    if code in _ACCEPTABLE and rights.lacks(needed):
        code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    if code not in _FINAL:
        return None
    if code == ErrorCode.INVALID_TOPIC_EXCEPTION:
        text = f"cannot {use} {topic!r}: this is not a valid topic name"
    else:
        role = "consumer" if use == "read" else "producer"
        text = f"is not permitted to {use} the topic {topic!r}. Grant the permission with headrace acl create --{role}"
    return ApiError.for_code(code, f"the worker {settings.name!r} {text}")


async def _group_problem(settings: WorkerSettings, outlet: Outlet) -> HeadraceError | None:
    try:
        rights = await outlet.rights_on_group(settings.group)
    except TransportError:
        return None  # the coordinator may be available later; an earlier check has reached a broker
    except ApiError as error:
        rights = Rights(error.code)
    code = rights.error
    if rights.lacks(Operation.READ):
        code = ErrorCode.GROUP_AUTHORIZATION_FAILED
    if code not in _FINAL:
        return None
    text = (
        f"is not permitted to join the group {settings.group!r}. Grant the permission with headrace acl create "
        "--consumer --group"
    )
    if code == ErrorCode.INVALID_GROUP_ID:
        text = f"cannot join {settings.group!r}: this is not a valid group name"
    return ApiError.for_code(code, f"the worker {settings.name!r} {text}")
