"""The steps of a follower: it fetches, and appends or truncates what the response says."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from tests.model.leading import fetched, in_flight
from tests.model.state import UNKNOWN, Replica, Request, Response, State, changed

if TYPE_CHECKING:
    from tests.model.model import Label, Model, Step


def steps(model: Model, state: State, broker: int, replica: Replica) -> Iterator[Step]:
    """Return the steps of a follower."""
    bounds, rules = model.bounds, model.rules
    if bounds.deletes and not rules.start_follows_leader and replica.start < replica.high_watermark:
        after = replica._replace(start=replica.start + 1, log=replica.log[1:])
        yield (("delete own records", broker), *model.with_replica(state, broker, after))
    if not replica.syncs or replica.synced == replica.end or not rules.reports_what_is_synced:
        request = Request(
            replica.leader,
            replica.epoch,
            replica.end,
            replica.last_epoch,
            replica.broker_epoch,
            replica.start,
        )
        if bounds.late_requests:
            sent = in_flight(state.requests[broker], request, bounds.in_flight)
            requests = changed(state.requests, broker, sent)
            yield ("fetch", broker), state._replace(requests=requests), ""
        else:
            yield from fetched(model, state, ("fetch", broker), request)
    responses = state.responses[broker]
    for index, response in enumerate(responses):
        left = responses[:index] + responses[index + 1 :]
        rest = state._replace(responses=changed(state.responses, broker, left))
        yield from _arrives(model, rest, ("response", broker, index), replica, response)
        if bounds.repeats:
            label: Label = ("response, not the last time", broker, index)
            yield from _arrives(model, state, label, replica, response)


def _arrives(
    model: Model, state: State, label: Label, replica: Replica, response: Response
) -> Iterator[Step]:
    broker, rules = label[1], model.rules
    is_ignored = (rules.response_belongs_to_epoch and response.epoch != replica.epoch) or (
        rules.response_belongs_to_request
        and (response.offset, response.last_epoch) != (replica.end, replica.last_epoch)
    )
    if is_ignored:
        yield label, state, ""
        return
    if response.diverging_epoch != UNKNOWN:
        after = _truncated(model, replica, response)
        problem = ""
        if after.end < replica.high_watermark:
            problem = (
                f"broker {broker} truncates to {after.end}, below its high watermark "
                f"{replica.high_watermark}"
            )
        state, wrong = model.with_replica(state, broker, after)
        yield label, state, wrong or problem
        return
    if response.start > response.offset:  # the follower begins a new log
        start = response.start
        after = replica._replace(log=(), start=start, high_watermark=start, synced=start)
        yield (label, *model.with_replica(state, broker, after))
        return
    if response.records and response.offset != replica.end:
        problem = ""
        if response.offset > replica.end:
            problem = f"broker {broker} appends at {response.offset} after {replica.end}"
        yield label, state, problem
        return
    yield (label, *model.with_replica(state, broker, _appended(model, replica, response)))


def _truncated(model: Model, replica: Replica, response: Response) -> Replica:
    """Return the replica without what the leader does not have."""
    if not model.rules.truncates_before_high_watermark:
        high_watermark = min(response.high_watermark, replica.end)
        replica = replica._replace(high_watermark=max(replica.high_watermark, high_watermark))
    own = 0
    for record in replica.log:
        if record > response.diverging_epoch:
            break
        own += 1
    end = max(replica.start, min(response.diverging_end, replica.start + own))
    return replica._replace(log=replica.log[: end - replica.start], synced=min(replica.synced, end))


def _appended(model: Model, replica: Replica, response: Response) -> Replica:
    log = replica.log + response.records
    end = replica.start + len(log)
    high_watermark = max(replica.high_watermark, min(response.high_watermark, end))
    start = replica.start
    if model.rules.start_follows_leader and response.start > start:
        start = min(response.start, high_watermark)
        log = log[start - replica.start :]
    return replica._replace(log=log, start=start, high_watermark=high_watermark)
