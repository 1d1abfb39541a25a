"""Update expressions with SET, REMOVE, ADD and DELETE."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from headrace.testing.kinesis.dynamodb.conditions import Operand, operand
from headrace.testing.kinesis.dynamodb.parsing import Attributes, Parser
from headrace.testing.kinesis.dynamodb.values import Item, Value, add, kind_of, refused

Change = Callable[[Item], Value | None]
"""Computes the new value of an attribute from the old item; None removes the attribute."""

Updates = dict[str, Change]

_CLAUSES: Final = ("SET", "REMOVE", "ADD", "DELETE")
_SETS: Final = frozenset({"SS", "NS", "BS"})


def parse_update(text: str | None, attributes: Attributes) -> Updates:
    """Return the changes of an update expression, by attribute.

    Raises:
        AwsError: The expression is not valid, or not supported.
    """
    updates: Updates = {}
    if text is None:
        return updates
    parser = Parser("UpdateExpression", text, attributes)
    seen: set[str] = set()
    while parser.token.kind != "end":
        clause = parser.take().text
        if clause not in _CLAUSES:
            raise refused(f'Invalid UpdateExpression: Syntax error; token: "{clause}"')
        if clause in seen:
            raise refused(
                f'Invalid UpdateExpression: The "{clause}" section can only be used once in an update expression;'
            )
        seen.add(clause)
        _section(parser, clause, updates)
    return updates


def _section(parser: Parser, clause: str, updates: Updates) -> None:
    while True:
        name = parser.path()
        if name in updates:
            raise refused(
                "Invalid UpdateExpression: Two document paths overlap with each other; must "
                f"remove or rewrite one of these paths; path one: [{name}], path two: [{name}]"
            )
        updates[name] = _change(parser, clause, name)
        if not parser.accept(","):
            return


def _change(parser: Parser, clause: str, name: str) -> Change:
    if clause == "REMOVE":
        return lambda _item: None
    if clause == "SET":
        parser.expect("=")
        return _sum(parser)
    given = operand(parser)
    return _added(name, given) if clause == "ADD" else _subtracted(name, given)


def _sum(parser: Parser) -> Change:
    left = _term(parser)
    for sign, factor in (("+", 1), ("-", -1)):
        if parser.accept(sign):
            return _calculated(left, _term(parser), factor)
    return lambda item: _present(left(item))


def _calculated(left: Operand, right: Operand, factor: int) -> Change:
    return lambda item: add(_present(left(item)), _present(right(item)), factor)


def _term(parser: Parser) -> Operand:
    if parser.called("if_not_exists") is None:
        return operand(parser)
    name = parser.path()
    parser.expect(",")
    otherwise = operand(parser)
    parser.expect(")")
    return lambda item: item[name] if name in item else otherwise(item)


def _present(value: Value | None) -> Value:
    if value is None:
        raise refused(
            "The provided expression refers to an attribute that does not exist in the item"
        )
    return value


def _added(name: str, given: Operand) -> Change:
    def change(item: Item) -> Value:
        value = _present(given(item))
        before = item.get(name)
        kind = kind_of(value)
        if kind == "N":
            return value if before is None else add(before, value, 1)
        if kind not in _SETS or (before is not None and kind not in before):
            raise refused("An operand in the update expression has an incorrect data type")
        return {kind: list(dict.fromkeys([*(before or {kind: []})[kind], *value[kind]]))}

    return change


def _subtracted(name: str, given: Operand) -> Change:
    def change(item: Item) -> Value | None:
        value = _present(given(item))
        before = item.get(name)
        kind = kind_of(value)
        if kind not in _SETS or (before is not None and kind not in before):
            raise refused("An operand in the update expression has an incorrect data type")
        left = [each for each in (before or {kind: []})[kind] if each not in value[kind]]
        return {kind: left} if left else None

    return change
