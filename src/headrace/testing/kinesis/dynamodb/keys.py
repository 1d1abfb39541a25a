"""Key conditions: one hash key, and optionally a condition on range keys."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any, Final

from headrace.testing.kinesis.dynamodb.conditions import Condition
from headrace.testing.kinesis.dynamodb.parsing import Attributes, Parser
from headrace.testing.kinesis.dynamodb.values import Value, orderable, refused, wrong

_ORDERS: Final[dict[str, Callable[[Any, Any], bool]]] = {
    "=": operator.eq,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


def parse_key_condition(
    text: str, keys: Mapping[str, str], attributes: Attributes
) -> tuple[Any, Condition]:
    """Return the hash key of a key condition in its ordered form, and the condition on the range key.

    Raises:
        AwsError: The expression is not valid, or not a condition on the key.
    """
    parser = Parser("KeyConditionExpression", text, attributes)
    parts = [_part(parser, keys)]
    while parser.accept("AND"):
        parts.append(_part(parser, keys))
    parser.expect_end()
    names = list(keys)
    wanted = [part for part in parts if part[0] == names[0]]
    ranges = [part for part in parts if part[0] != names[0]]
    if len(wanted) != 1 or wanted[0][1] is None or len(ranges) > 1:
        raise refused(
            "Query condition missed key schema element"
            if not wanted
            else "Query key condition not supported"
        )
    if not ranges:
        return wanted[0][1], lambda _item: True
    name, _, holds = ranges[0]
    return wanted[0][1], lambda item: holds(orderable(item[name]))


def _part(parser: Parser, keys: Mapping[str, str]) -> tuple[str, Any, Callable[[Any], bool]]:
    """Return the attribute, the value that it must equal (None: no equality), and the condition on it."""
    if parser.accept("("):
        inner = _part(parser, keys)
        parser.expect(")")
        return inner
    if parser.called("begins_with"):
        name = _key(parser, keys)
        parser.expect(",")
        start = _value(parser, name, keys)
        parser.expect(")")
        return name, None, lambda held: bool(held.startswith(start))
    name = _key(parser, keys)
    if parser.accept("BETWEEN"):
        low = _value(parser, name, keys)
        parser.expect("AND")
        high = _value(parser, name, keys)
        return name, None, lambda held: bool(low <= held <= high)
    sign = parser.take().text
    if sign not in _ORDERS:
        raise refused(f'Invalid operator used in KeyConditionExpression: "{sign}"')
    value = _value(parser, name, keys)
    return name, value if sign == "=" else None, lambda held: _ORDERS[sign](held, value)


def _key(parser: Parser, keys: Mapping[str, str]) -> str:
    name = parser.path()
    if name not in keys:
        raise refused(f"Query condition missed key schema element: {next(iter(keys))}")
    return name


def _value(parser: Parser, name: str, keys: Mapping[str, str]) -> Any:
    token = parser.take()
    if token.kind != "value":
        raise refused("Invalid KeyConditionExpression: a key is compared to a value of the request")
    value: Value = parser.attributes.value(token.text)
    if keys[name] not in value:
        raise wrong("Condition parameter type does not match schema type")
    return orderable(value)
