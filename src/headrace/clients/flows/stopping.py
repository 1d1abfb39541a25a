"""Stopping one member of a group: ask its coordinator until the member has left."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Literal, NamedTuple

from headrace.clients.flows.coordinator import ask_coordinator, raise_for
from headrace.clients.flows.effects import ClientState, Flow, Wait
from headrace.errors import ApiError, ConfigError, ErrorCode
from headrace.protocol.messages.leave_group import (
    HeadraceStop,
    HeadraceStopped,
    LeaveGroupRequest,
    LeaveGroupResponse,
)

StopOutcome = Literal["stopped", "removed", "gone"]
"""How a stop ended.

* stopped: the member has left by itself.
* removed: the member has not left in time and was removed by force. It may join again.
* gone: the member is no member any more, and the coordinator does not know whether it has stopped. Its session has
  ended, or the coordinator was restarted meanwhile.
"""

DEFAULT_TIMEOUT_S: Final = 60.0
MAX_TIMEOUT_MS: Final = 2**31 - 1
_ENDS: Final[dict[int, StopOutcome]] = {2: "stopped", 3: "removed"}
_STOPPING: Final = 1
_FIRST_PAUSE_MS: Final = 50
_LONGEST_PAUSE_MS: Final = 1_000
GRACE_MS: Final = 15_000
"""How long after the deadline the coordinator may take to remove the member by force."""


class StopProgress(NamedTuple):
    """How far a stop is while the member has not left."""

    member_id: str
    told: bool
    """Whether an answer to the member's heartbeat has said that it has to stop."""
    remaining_ms: int
    """How long it is until the member is removed by force."""


def stop_member(
    state: ClientState,
    group: str,
    *,
    member_id: str,
    group_instance_id: str | None,
    timeout_ms: int,
    now_ms: Callable[[], int],
    on_progress: Callable[[StopProgress], object] = lambda _: None,
) -> Flow[StopOutcome]:
    """Have a member finish, commit and leave, and wait for that.

    The coordinator keeps the request in memory only, so it is repeated until the end is known: a coordinator that was
    restarted meanwhile goes on with the time that is left.

    Args:
        state: The client's state.
        group: The group.
        member_id: The member, or "" for a static member that is named by its instance id alone.
        group_instance_id: The static member's name, or None.
        timeout_ms: After how long the coordinator removes the member by force.
        now_ms: The time.
        on_progress: Called with each answer while the member has not left.

    Raises:
        ApiError: UNKNOWN_MEMBER_ID where there is no such member; UNSUPPORTED_VERSION where the broker cannot stop
            members; REQUEST_TIMED_OUT where the coordinator did not even remove the member.
        ConfigError: No member is named.
    """
    if not member_id and not group_instance_id:
        raise ConfigError("stop_member needs a member id, or the instance id of a static member")
    timeout_ms = min(timeout_ms, MAX_TIMEOUT_MS)
    until_ms = now_ms() + timeout_ms
    wanted = HeadraceStop(
        member_id=member_id, group_instance_id=group_instance_id, timeout_ms=timeout_ms
    )
    pause_ms = _FIRST_PAUSE_MS
    while True:
        stopped = yield from _ask(state, group, wanted)
        if stopped.state in _ENDS:
            return _ENDS[stopped.state]
        if stopped.error_code:
            if wanted.again and stopped.error_code == ErrorCode.UNKNOWN_MEMBER_ID:
                return "gone"
            name = group_instance_id or member_id
            raise_for(stopped.error_code, f"member {name!r} of group {group!r}")
        on_progress(StopProgress(stopped.member_id, stopped.told, stopped.remaining_ms))
        if now_ms() >= until_ms + GRACE_MS:
            raise ApiError.for_code(
                ErrorCode.REQUEST_TIMED_OUT,
                f"member {stopped.member_id!r} of group {group!r} has not stopped, and could not be removed by force",
            )
        yield Wait(now_ms() + pause_ms)
        pause_ms = min(2 * pause_ms, _LONGEST_PAUSE_MS)
        # Another may take over the instance id meanwhile: it is the one that was found first that has to stop.
        wanted = HeadraceStop(
            member_id=stopped.member_id, timeout_ms=max(0, until_ms - now_ms()), again=True
        )


def _ask(state: ClientState, group: str, wanted: HeadraceStop) -> Flow[HeadraceStopped]:
    # It names no member to remove: a broker that does not know the tagged field does nothing.
    request = LeaveGroupRequest(group_id=group, headrace_stop=wanted)
    response = yield from ask_coordinator(
        state, group, request, LeaveGroupResponse, lambda answer: answer.error_code
    )
    if response.headrace_stop is not None:
        return response.headrace_stop
    if response.error_code not in {ErrorCode.NONE, ErrorCode.UNKNOWN_MEMBER_ID}:
        raise_for(response.error_code, f"group {group!r}")
    raise ApiError.for_code(
        ErrorCode.UNSUPPORTED_VERSION,
        f"the broker that coordinates group {group!r} cannot ask a member to stop: only Headrace does so, and this is "
        "another broker or an older release. Nothing has changed. Stop the member's program itself",
    )
