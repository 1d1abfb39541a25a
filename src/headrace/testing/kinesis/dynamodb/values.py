"""Attribute values of DynamoDB in their JSON form: `{"S": "text"}`, `{"N": "12"}`."""

from __future__ import annotations

import binascii
import re
from base64 import b64decode
from decimal import Context, Decimal
from typing import Any, Final

from headrace.testing.kinesis.errors import AwsError

Value = dict[str, Any]
Item = dict[str, Value]

_DIGITS: Final = 38
_NUMBER: Final = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)
_EXACT: Final = Context(prec=400)
_LARGEST_EXPONENT: Final = 125
_SMALLEST_EXPONENT: Final = -130
_SETS: Final = {"SS": "S", "NS": "N", "BS": "B"}
_NUMBER_SIZE: Final = 21


def refused(message: str) -> AwsError:
    """Return a ValidationException with a message."""
    return AwsError("ValidationException", message)


def wrong(message: str) -> AwsError:
    """Return the refusal of a parameter's value."""
    return refused(f"One or more parameter values were invalid: {message}")


def checked(value: Any) -> Value:
    """Return a value as DynamoDB stores it: numbers are normalized.

    Raises:
        AwsError: The value has no type or several, is a number of more than 38 digits, or is an empty set.
    """
    if not isinstance(value, dict) or len(value) != 1:
        raise refused(
            "Supplied AttributeValue has more than one datatypes set, must contain exactly one "
            "of the supported datatypes"
            if value
            else "Supplied AttributeValue is empty, must contain exactly one of the supported datatypes"
        )
    ((kind, held),) = value.items()
    if kind in _SETS:
        return {kind: _checked_set(kind, held)}
    if kind == "L" and isinstance(held, list):
        return {kind: [checked(each) for each in held]}
    if kind == "M" and isinstance(held, dict):
        return {kind: {name: checked(each) for name, each in held.items()}}
    return {kind: _checked_scalar(kind, held)}


def _checked_set(kind: str, held: Any) -> list[str]:
    if not isinstance(held, list) or not held:
        raise wrong("An string set  may not be empty" if kind == "SS" else "A set may not be empty")
    members = [_checked_scalar(_SETS[kind], each) for each in held]
    if len(set(members)) != len(members):
        raise wrong(f"Input collection {held} contains duplicates.")
    return members


def _checked_scalar(kind: str, held: Any) -> Any:
    if kind in {"S", "N", "B"} and not isinstance(held, str):
        raise AwsError("SerializationException", f"{held!r} can not be converted to a String")
    if kind == "S":
        return held
    if kind == "N":
        return _checked_number(held)
    if kind == "B":
        try:
            b64decode(held, validate=True)
        except binascii.Error as error:
            raise AwsError("SerializationException", "a binary value is not base64") from error
        return held
    if kind == "BOOL" and isinstance(held, bool):
        return held
    if kind == "NULL" and held is True:
        return held
    raise refused(
        "Supplied AttributeValue is empty, must contain exactly one of the supported datatypes"
    )


def _checked_number(text: str) -> str:
    if not _NUMBER.fullmatch(text):
        raise refused(f"The parameter cannot be converted to a numeric value: {text}")
    number = Decimal(text)
    digits = "".join(map(str, number.as_tuple().digits)).strip("0")
    if len(digits) > _DIGITS:
        raise refused("Attempting to store more than 38 significant digits in a Number")
    if number and number.adjusted() > _LARGEST_EXPONENT:
        raise refused(
            "Number overflow. Attempting to store a number with magnitude larger than supported "
            "range"
        )
    if number and number.adjusted() < _SMALLEST_EXPONENT:
        raise refused(
            "Number underflow. Attempting to store a number with magnitude smaller than "
            "supported range"
        )
    return number_text(number)


def number_text(number: Decimal) -> str:
    """Return a number in DynamoDB's form."""
    plain = format(number.normalize(_EXACT), "f")
    return "0" if plain == "-0" else plain


def number_of(value: Value, what: str) -> Decimal:
    """Return the number that a value contains.

    Raises:
        AwsError: The value has another type.
    """
    if "N" not in value:
        raise refused(
            f"An operand in the update expression has an incorrect data type: {what} wants a number"
        )
    return Decimal(value["N"])


def add(one: Value, other: Value, sign: int) -> Value:
    """Return a sum or a difference."""
    total = _EXACT.add(number_of(one, "+"), sign * number_of(other, "+"))
    return checked({"N": format(total, "f")})


def orderable(value: Value) -> Any:
    """Return the form of a value by which values of its type are compared."""
    ((kind, held),) = value.items()
    if kind == "N":
        return Decimal(held)
    if kind == "B":
        return b64decode(held)
    return held.encode() if kind == "S" else held


def kind_of(value: Value) -> str:
    """Return the type of a value."""
    return next(iter(value))


def same(one: Value, other: Value) -> bool:
    """Whether two values are equal. The order of a set does not matter."""
    kind = kind_of(one)
    if kind != kind_of(other):
        return False
    if kind in _SETS:
        return set(one[kind]) == set(other[kind])
    return bool(one == other)


def size_of(item: Item) -> int:
    """Return about how many bytes an item has for DynamoDB's limits."""
    return sum(len(name.encode()) + _size(value) for name, value in item.items())


def _size(value: Value) -> int:
    ((kind, held),) = value.items()
    if kind in {"BOOL", "NULL"}:
        return 1
    if kind == "M":
        return 3 + size_of(held) + len(held)
    if kind == "L":
        return 3 + sum(_size(each) + 1 for each in held)
    if kind in _SETS:
        return sum(_size({_SETS[kind]: each}) for each in held)
    if kind == "N":
        return min(_NUMBER_SIZE, len(held) // 2 + 2)
    return len(held.encode()) if kind == "S" else len(b64decode(held))
