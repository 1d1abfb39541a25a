"""The operations PutItem, UpdateItem and DeleteItem."""

from __future__ import annotations

from typing import Any, Final

from headrace.testing.kinesis.calls import Call
from headrace.testing.kinesis.dynamodb.conditions import parse_condition
from headrace.testing.kinesis.dynamodb.parsing import Attributes
from headrace.testing.kinesis.dynamodb.table import Key, Table, checked_item
from headrace.testing.kinesis.dynamodb.tables import Tables
from headrace.testing.kinesis.dynamodb.updates import Updates, parse_update
from headrace.testing.kinesis.dynamodb.values import Item, refused, wrong
from headrace.testing.kinesis.errors import AwsError

_RETURNS: Final = frozenset({"NONE", "ALL_OLD"})
_UPDATE_RETURNS: Final = frozenset({"NONE", "ALL_OLD", "UPDATED_OLD", "ALL_NEW", "UPDATED_NEW"})


def put_item(tables: Tables, call: Call) -> dict[str, object]:
    """Handle PutItem: write an item, which replaces the item with its key."""
    request = call.request
    table = tables.usable(call)
    item = checked_item(request.get("Item"))
    place = table.key_of(item)
    wanted = _returned(request, _RETURNS)
    attributes = Attributes(request)
    before = _require(table, place, request, attributes)
    table.put(place, item)
    return {"Attributes": before} if wanted == "ALL_OLD" and before is not None else {}


def delete_item(tables: Tables, call: Call) -> dict[str, object]:
    """Handle DeleteItem: remove an item. A missing item is no error."""
    request = call.request
    table = tables.usable(call)
    place = table.exact_key(request.get("Key"))
    wanted = _returned(request, _RETURNS)
    before = _require(table, place, request, Attributes(request))
    table.items.pop(place, None)
    return {"Attributes": before} if wanted == "ALL_OLD" and before is not None else {}


def update_item(tables: Tables, call: Call) -> dict[str, object]:
    """Handle UpdateItem: change an item, or write a new one."""
    request = call.request
    table = tables.usable(call)
    place = table.exact_key(request.get("Key"))
    wanted = _returned(request, _UPDATE_RETURNS)
    attributes = Attributes(request)
    updates = parse_update(request.get("UpdateExpression"), attributes)
    for name in updates:
        if name in table.keys:
            raise wrong(f"Cannot update attribute {name}. This attribute is part of the key")
    before = _require(table, place, request, attributes)
    item = dict(checked_item(request["Key"]) if before is None else before)
    changed = {name: change(item) for name, change in updates.items()}
    for name, value in changed.items():
        if value is None:
            item.pop(name, None)
        else:
            item[name] = value
    table.put(place, item)
    return _answer(wanted, before, item, updates)


def _returned(request: dict[str, Any], known: frozenset[str]) -> str:
    wanted: str = request.get("ReturnValues", "NONE")
    if wanted not in known:
        raise refused(f"Return values set to invalid value: {wanted}")
    return wanted


def _answer(wanted: str, before: Item | None, after: Item, updates: Updates) -> dict[str, object]:
    of = {"ALL_OLD": before, "UPDATED_OLD": before, "ALL_NEW": after, "UPDATED_NEW": after}.get(
        wanted
    )
    if of is None:
        return {}
    if wanted.startswith("UPDATED"):
        of = {name: value for name, value in of.items() if name in updates}
    return {"Attributes": of} if of else {}


def _require(
    table: Table, place: Key, request: dict[str, Any], attributes: Attributes
) -> Item | None:
    """Return the present item, if the request's condition holds for it.

    Raises:
        AwsError: ConditionalCheckFailedException: the condition does not hold.
    """
    condition = parse_condition(
        "ConditionExpression", request.get("ConditionExpression"), attributes
    )
    attributes.require_all_used()
    before = table.items.get(place)
    if condition(before or {}):
        return before
    reply: dict[str, object] = {}
    if before is not None and request.get("ReturnValuesOnConditionCheckFailure") == "ALL_OLD":
        reply["Item"] = before
    raise AwsError("ConditionalCheckFailedException", "The conditional request failed", reply)
