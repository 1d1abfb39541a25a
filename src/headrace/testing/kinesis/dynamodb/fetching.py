"""The operations GetItem, Query and Scan."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from headrace.testing.kinesis.calls import Call
from headrace.testing.kinesis.dynamodb.conditions import parse_condition
from headrace.testing.kinesis.dynamodb.keys import parse_key_condition
from headrace.testing.kinesis.dynamodb.parsing import Attributes, Parser
from headrace.testing.kinesis.dynamodb.table import Table
from headrace.testing.kinesis.dynamodb.tables import Tables
from headrace.testing.kinesis.dynamodb.values import Item, refused, size_of

_PAGE_BYTES: Final = 1 << 20


def get_item(tables: Tables, call: Call) -> dict[str, object]:
    """Handle GetItem: return one item, or nothing."""
    table = tables.usable(call)
    place = table.exact_key(call.request.get("Key"))
    attributes = Attributes(call.request)
    project = _projection(call.request, attributes)
    attributes.require_all_used()
    found = table.items.get(place)
    return {} if found is None else {"Item": project(found)}


def query(tables: Tables, call: Call) -> dict[str, object]:
    """Handle Query: return the items of one hash key, in order, a page at a time."""
    request = call.request
    table = tables.usable(call)
    attributes = Attributes(request)
    if not request.get("KeyConditionExpression"):
        raise refused(
            "Either the KeyConditions or KeyConditionExpression parameter must be specified in "
            "the request."
        )
    hash_key, condition = parse_key_condition(
        request["KeyConditionExpression"], table.keys, attributes
    )
    items = [item for item in table.in_order(hash_key) if condition(item)]
    if not request.get("ScanIndexForward", True):
        items.reverse()
    return _page(table, items, request, attributes)


def scan(tables: Tables, call: Call) -> dict[str, object]:
    """Handle Scan: return all items, a page at a time."""
    table = tables.usable(call)
    return _page(table, table.in_order(), call.request, Attributes(call.request))


def _page(
    table: Table, items: list[Item], request: dict[str, Any], attributes: Attributes
) -> dict[str, object]:
    keep = parse_condition("FilterExpression", request.get("FilterExpression"), attributes)
    project = _projection(request, attributes)
    attributes.require_all_used()
    rest = _after(
        table,
        items,
        request.get("ExclusiveStartKey"),
        forward=request.get("ScanIndexForward", True),
    )
    page = _first_page(rest, request.get("Limit"))
    found = [project(item) for item in page if keep(item)]
    reply: dict[str, object] = {"Count": len(found), "ScannedCount": len(page)}
    if request.get("Select") != "COUNT":
        reply["Items"] = found
    if len(page) < len(rest) or (request.get("Limit") == len(page) and page):
        reply["LastEvaluatedKey"] = table.key_item(page[-1])
    return reply


def _after(table: Table, items: list[Item], start: Any, *, forward: bool) -> list[Item]:
    """Return the items behind a key. An item with the key need not exist any more."""
    if start is None:
        return items
    place = table.order(table.exact_key(start))
    if forward:
        return [item for item in items if table.order(table.key_of(item)) > place]
    return [item for item in items if table.order(table.key_of(item)) < place]


def _first_page(items: list[Item], limit: int | None) -> list[Item]:
    """Return the items of a page: at most `limit` items, until they exceed 1 MB."""
    if limit is not None and limit < 1:
        raise refused(
            f"1 validation error detected: Value '{limit}' at 'limit' failed to satisfy "
            "constraint: Member must have value greater than or equal to 1"
        )
    size = 0
    for count, item in enumerate(items[:limit], 1):
        size += size_of(item)
        if size >= _PAGE_BYTES:
            return items[:count]
    return items[:limit]


def _projection(request: dict[str, Any], attributes: Attributes) -> Callable[[Item], Item]:
    text = request.get("ProjectionExpression")
    if text is None:
        return lambda item: item
    parser = Parser("ProjectionExpression", text, attributes)
    names = [parser.path()]
    while parser.accept(","):
        names.append(parser.path())
    parser.expect_end()
    return lambda item: {name: item[name] for name in names if name in item}
