"""Stop one member of a group: repeat a request to the coordinator until the member has left."""

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
"""The outcome of a stop.

* stopped: the member has left by itself.
* removed: the member has not left in time and was removed by force. It may join again.
* gone: the member is no longer in the group, and the coordinator does not know whether it has stopped. Its session has
  expired, or the coordinator was restarted.
"""

DEFAULT_TIMEOUT_S: Final = 60.0
MAX_TIMEOUT_MS: Final = 2**31 - 1
_ENDS: Final[dict[int, StopOutcome]] = {2: "stopped", 3: "removed"}
_STOPPING: Final = 1
_FIRST_PAUSE_MS: Final = 50
_LONGEST_PAUSE_MS: Final = 1_000
GRACE_MS: Final = 15_000
"""Milliseconds after the deadline that the coordinator may take to remove the member by force."""


class StopProgress(NamedTuple):
    """The progress of a stop while the member has not left."""

    member_id: str
    told: bool
    """Whether a response to the member's heartbeat has requested the stop."""
    remaining_ms: int
    """Milliseconds until the member is removed by force."""


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
    """Request that a member finishes its records, commits and leaves; wait until it has left.

    The coordinator stores the request in memory only. The client repeats the request with the remaining time until the
    outcome is known, so that a restarted coordinator receives it again.

    Args:
        state: The client's state.
        group: The group.
        member_id: The member id; "" for a static member that is named by its instance id only.
        group_instance_id: The instance id of a static member; None if the member is named by its id.
        timeout_ms: Milliseconds after which the coordinator removes the member by force.
        now_ms: Returns the time in milliseconds.
        on_progress: Called with each response while the member has not left.

    Raises:
        ApiError: UNKNOWN_MEMBER_ID, if there is no such member; UNSUPPORTED_VERSION, if the broker cannot stop
            members; REQUEST_TIMED_OUT, if the coordinator did not even remove the member.
        ConfigError: Neither a member id nor an instance id is given.
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
        # Another member may take over the instance id. The member that was found first must stop, so its id is sent.
        wanted = HeadraceStop(
            member_id=stopped.member_id, timeout_ms=max(0, until_ms - now_ms()), again=True
        )


def _ask(state: ClientState, group: str, wanted: HeadraceStop) -> Flow[HeadraceStopped]:
    # The request names no member to remove, so a broker that does not know the tagged field does nothing.
    request = LeaveGroupRequest(group_id=group, headrace_stop=wanted)
    response = yield from ask_coordinator(
        state, group, request, LeaveGroupResponse, lambda response: response.error_code
    )
    if response.headrace_stop is not None:
        return response.headrace_stop
    if response.error_code not in {ErrorCode.NONE, ErrorCode.UNKNOWN_MEMBER_ID}:
        raise_for(response.error_code, f"group {group!r}")
    raise ApiError.for_code(
        ErrorCode.UNSUPPORTED_VERSION,
        f"the coordinator of group {group!r} does not support stopping a member: it is not a Headrace broker, or an "
        "older release. Nothing has changed. Stop the member's program instead",
    )
