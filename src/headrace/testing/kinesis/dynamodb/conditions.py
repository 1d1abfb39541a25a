"""Conditions on items, for writes and for the filters of reads."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any, Final

from headrace.testing.kinesis.dynamodb.parsing import Attributes, Parser
from headrace.testing.kinesis.dynamodb.values import Item, Value, kind_of, orderable, refused, same

Condition = Callable[[Item], bool]
Operand = Callable[[Item], Value | None]

_ORDERS: Final[dict[str, Callable[[Any, Any], bool]]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_ORDERED: Final = frozenset({"S", "N", "B"})


def parse_condition(title: str, text: str | None, attributes: Attributes) -> Condition:
    """Return the condition that an expression describes. Without an expression it always holds.

    Args:
        title: The member of the request that contains the expression, for refusals.
        text: The expression, or None.
        attributes: The names and values of the request.

    Raises:
        AwsError: The expression is not valid, or not supported.
    """
    if text is None:
        return lambda _item: True
    parser = Parser(title, text, attributes)
    condition = _either(parser)
    parser.expect_end()
    return condition


def _either(parser: Parser) -> Condition:
    left = _both(parser)
    while parser.accept("OR"):
        left = _or(left, _both(parser))
    return left


def _both(parser: Parser) -> Condition:
    left = _not(parser)
    while parser.accept("AND"):
        left = _and(left, _not(parser))
    return left


def _or(left: Condition, right: Condition) -> Condition:
    return lambda item: left(item) or right(item)


def _and(left: Condition, right: Condition) -> Condition:
    return lambda item: left(item) and right(item)


def _not(parser: Parser) -> Condition:
    if parser.accept("NOT"):
        inner = _not(parser)
        return lambda item: not inner(item)
    if parser.accept("("):
        inner = _either(parser)
        parser.expect(")")
        return inner
    return _predicate(parser)


_PREDICATES: Final = (
    "attribute_exists",
    "attribute_not_exists",
    "attribute_type",
    "begins_with",
    "contains",
)


def _predicate(parser: Parser) -> Condition:
    function = parser.called(*_PREDICATES, "size")
    if function is not None and function != "size":
        return _function(parser, function)
    left = _size(parser) if function else operand(parser)
    if parser.accept("BETWEEN"):
        low = operand(parser)
        parser.expect("AND")
        return _between(left, low, operand(parser))
    if parser.accept("IN"):
        return _among(left, _list(parser))
    sign = parser.take()
    if sign.text in _ORDERS:
        return _ordered(left, operand(parser), _ORDERS[sign.text])
    if sign.text not in {"=", "<>"}:
        raise parser.syntax_error()
    return _equal(left, operand(parser), wanted=sign.text == "=")


def _function(parser: Parser, function: str) -> Condition:
    name = parser.path()
    if function in {"attribute_exists", "attribute_not_exists"}:
        parser.expect(")")
        wanted = function == "attribute_exists"
        return lambda item: (name in item) is wanted
    parser.expect(",")
    other = operand(parser)
    parser.expect(")")
    compare = {"attribute_type": _is_of, "begins_with": _begins, "contains": _contains}[function]

    def holds(item: Item) -> bool:
        value, given = item.get(name), other(item)
        return value is not None and given is not None and compare(value, given)

    return holds


def _size(parser: Parser) -> Operand:
    name = parser.path()
    parser.expect(")")

    def measured(item: Item) -> Value | None:
        if name not in item:
            return None
        ((kind, held),) = item[name].items()
        if kind in {"N", "BOOL", "NULL"}:
            raise refused(f"Invalid operand in the size function: {kind} has no size")
        return {"N": str(len(orderable({kind: held}) if kind in _ORDERED else held))}

    return measured


def operand(parser: Parser) -> Operand:
    """Return a function that returns the value of an operand in an item."""
    if parser.token.kind == "value":
        value = parser.attributes.value(parser.take().text)
        return lambda _item: value
    name = parser.path()
    return lambda item: item.get(name)


def _list(parser: Parser) -> list[Operand]:
    parser.expect("(")
    found = [operand(parser)]
    while parser.accept(","):
        found.append(operand(parser))
    parser.expect(")")
    return found


def _equal(left: Operand, right: Operand, *, wanted: bool) -> Condition:
    """Compare for equality. A missing attribute equals nothing, and differs from everything."""

    def holds(item: Item) -> bool:
        one, other = left(item), right(item)
        return (one is not None and other is not None and same(one, other)) is wanted

    return holds


def _ordered(left: Operand, right: Operand, compare: Callable[[Any, Any], bool]) -> Condition:
    return lambda item: _compare(left(item), right(item), compare)


def _compare(one: Value | None, other: Value | None, compare: Callable[[Any, Any], bool]) -> bool:
    if one is None or other is None or kind_of(one) != kind_of(other):
        return False
    return kind_of(one) in _ORDERED and compare(orderable(one), orderable(other))


def _between(value: Operand, low: Operand, high: Operand) -> Condition:
    def holds(item: Item) -> bool:
        found = value(item)
        return _compare(low(item), found, operator.le) and _compare(found, high(item), operator.le)

    return holds


def _among(value: Operand, choices: list[Operand]) -> Condition:
    conditions = [_equal(value, choice, wanted=True) for choice in choices]
    return lambda item: any(condition(item) for condition in conditions)


def _is_of(value: Value, kind: Value) -> bool:
    return kind_of(value) == kind.get("S")


def _begins(value: Value, start: Value) -> bool:
    kind = kind_of(value)
    if kind != kind_of(start) or kind not in {"S", "B"}:
        return False
    return bool(orderable(value).startswith(orderable(start)))


def _contains(value: Value, member: Value) -> bool:
    kind = kind_of(value)
    if kind == "S":
        return member.get("S", "\0") in value["S"]
    if kind == "L":
        return any(same(each, member) for each in value["L"])
    return kind in {"SS", "NS", "BS"} and member.get(kind[0]) in value[kind]
