"""The operation ListShards of Kinesis."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import msgspec

from headrace.testing.kinesis.account import Account, stream_name
from headrace.testing.kinesis.calls import Call
from headrace.testing.kinesis.errors import in_use, invalid, not_found
from headrace.testing.kinesis.shard import Shard
from headrace.testing.kinesis.stream import ACCOUNT, ACTIVE, UPDATING, Stream
from headrace.testing.kinesis.tokens import Page

_DEFAULT_PAGE: Final = 1_000
_TIMED: Final = frozenset({"AT_TIMESTAMP", "FROM_TIMESTAMP"})


def list_shards(account: Account, call: Call) -> dict[str, object]:
    """Handle ListShards: list shards, a page at a time."""
    stream, after, chosen = _wanted(account, call)
    limit = call.request.get("MaxResults", _DEFAULT_PAGE)
    keep = _keeps(chosen, stream, call.now_ms)
    shards = [each for each in stream.listed(call.now_ms) if each.name > after and keep(each)]
    reply: dict[str, object] = {"Shards": [shard.described() for shard in shards[:limit]]}
    if len(shards) > limit:
        page = Page(stream.name, shards[limit - 1].name, msgspec.json.encode(chosen).decode())
        reply["NextToken"] = account.tokens.write_page(page, call.now_ms)
    return reply


def _wanted(account: Account, call: Call) -> tuple[Stream, str, dict[str, Any]]:
    """Return the stream, the shard behind which the page begins, and the filter."""
    request = call.request
    token = request.get("NextToken")
    if token is None:
        stream = account.stream(call)
        _require_listable(stream, request)
        return stream, request.get("ExclusiveStartShardId", ""), request.get("ShardFilter", {})
    if stream_name(request) is not None:
        raise invalid("NextToken and StreamName cannot be provided together.")
    page = account.tokens.read_page(token, call.now_ms, account.limits)
    return account.named(page.stream, call.now_ms), page.after, msgspec.json.decode(page.filter)


def _require_listable(stream: Stream, request: dict[str, Any]) -> None:
    if stream.status not in {ACTIVE, UPDATING}:
        raise in_use(
            f"Stream {stream.name} under account {ACCOUNT} not ACTIVE, instead in state "
            f"{stream.status}"
        )
    created = request.get("StreamCreationTimestamp")
    if created is not None and round(created) != stream.created_ms // 1000:
        raise not_found(
            f"Stream {stream.name} under account {ACCOUNT} created at {created} not found."
        )


def _keeps(chosen: dict[str, Any], stream: Stream, now_ms: int) -> Callable[[Shard], bool]:
    """Return a function that returns whether a filter matches a shard."""
    kind = chosen.get("Type", "FROM_TRIM_HORIZON")
    if kind in _TIMED and "Timestamp" not in chosen:
        raise invalid(f"Timestamp must be provided in ShardFilter of type {kind}.")
    if kind == "AFTER_SHARD_ID" and "ShardId" not in chosen:
        raise invalid("ShardId must be provided in ShardFilter of type AFTER_SHARD_ID.")
    horizon_ms = max(stream.horizon_ms(now_ms), stream.created_ms)
    at_ms = max(round(chosen.get("Timestamp", 0) * 1000), horizon_ms)
    if kind == "AFTER_SHARD_ID":
        return lambda shard: shard.name > chosen["ShardId"]
    if kind == "AT_LATEST":
        return lambda shard: shard.closed_ms is None
    if kind in {"AT_TRIM_HORIZON", "AT_TIMESTAMP"}:
        return lambda shard: shard.created_ms <= at_ms and _is_open_at(shard, at_ms)
    return lambda shard: _is_open_at(shard, at_ms)


def _is_open_at(shard: Shard, at_ms: int) -> bool:
    return shard.closed_ms is None or shard.closed_ms >= at_ms
