"""Checks of the arguments of public methods against their annotations, before a request is sent.

`@checks_arguments` wraps every public method of a class. An argument that is not of the annotated type raises a
ConfigError that names the parameter. All clients raise the same error: in process, over TCP and with asyncio.
`Annotated[int, Between(low, high)]` bounds a number; any other `int` has 64 bits. Arguments whose annotation is a
protocol or `Any` are not checked here, but by the method.
"""

from __future__ import annotations

import functools
import math
import operator
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Annotated, Any, Final, Literal, NamedTuple, TypeVar, Union, get_args, get_origin

from headrace.errors import ConfigError
from headrace.types import MAX_INT64, MIN_INT64, TopicPartition

C = TypeVar("C", bound=type)
F = TypeVar("F", bound=Callable[..., Any])


class Between(NamedTuple):
    """The bounds of a number, both included."""

    low: int
    high: int


INT32: Final = Between(-(1 << 31), (1 << 31) - 1)
INT64: Final = Between(MIN_INT64, MAX_INT64)
Int16 = Annotated[int, Between(-(1 << 15), (1 << 15) - 1)]
"""A number that the protocol sends in 16 bits."""
Int32 = Annotated[int, INT32]
"""A number that the protocol sends in 32 bits."""
Count = Annotated[int, Between(0, INT32.high)]
"""A count, or the number of a partition."""
OffsetNumber = Annotated[int, Between(0, INT64.high)]
"""The offset of a record."""

_FOR_ONE: Final = "; for one: "
_SECRETS: Final = frozenset({"password"})
"""Parameters whose arguments do not appear in errors."""
REPR_LENGTH: Final = 80
"""The largest number of characters of a wrong argument in an error."""
_COROUTINE_FLAG: Final = 0x80
"""The flag of a code object for coroutines. The module `inspect` has it, but its import takes too long."""

Fit = Callable[[str, Any], Any]
"""A function that checks one argument. It gets the position for errors and the argument, and returns the value for the
method; it raises ConfigError."""


def checks_arguments(cls: C) -> C:
    """Wrap `__init__` and every public method of a class, except `unchecked` ones."""
    for name, member in list(vars(cls).items()):
        if not isinstance(member, types.FunctionType) or hasattr(member, "checks_by_itself"):
            continue
        if name == "__init__" or not name.startswith("_"):
            setattr(cls, name, checked(member))
    return cls


def unchecked(method: F) -> F:
    """Mark a method that is called for each record. It checks its arguments itself, after an operation has failed."""
    method.checks_by_itself = True  # type: ignore[attr-defined]  # functions take attributes
    return method


def checked(method: F) -> F:
    """Wrap one method with the checks of its arguments."""
    return _wrapped(method)  # type: ignore[arg-type,return-value]  # a method is a function until it is bound


def _wrapped(method: types.FunctionType) -> Callable[..., Any]:
    code = method.__code__
    names = code.co_varnames[: code.co_argcount]
    fits: dict[str, Fit] = {}

    def check(given: tuple[Any, ...], named: dict[str, Any]) -> list[Any]:
        if not fits:
            known = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
            # Without the annotation of the result, which may be imported for type checkers only.
            given_hints = {name: method.__annotations__.get(name, Any) for name in known}
            hints = typing.get_type_hints(
                types.SimpleNamespace(__annotations__=given_hints),
                globalns=method.__globals__,
                include_extras=True,
            )
            fits.update({name: _fit_of(hints.get(name, Any)) for name in known})
        for name in named.keys() & fits.keys():
            named[name] = fits[name](name, named[name])
        fitting = [fits[name](name, value) for name, value in zip(names, given, strict=False)]
        return [*fitting, *given[len(names) :]]

    if code.co_flags & _COROUTINE_FLAG:

        @functools.wraps(method)
        async def call_async(*given: Any, **named: Any) -> Any:
            return await method(*check(given, named), **named)

        return call_async

    @functools.wraps(method)
    def call(*given: Any, **named: Any) -> Any:
        return method(*check(given, named), **named)

    return call


def milliseconds(seconds: float | None, default_ms: int) -> int:
    """Return a timeout of the program in milliseconds. None is `default_ms`."""
    if seconds is None:
        return default_ms
    try:
        return max(0, round(seconds * 1000))
    except (TypeError, ValueError, OverflowError):
        raise ConfigError(f"a timeout is a number of seconds, not {seconds!r}") from None


def shown(value: object) -> str:
    """Return the text of a wrong argument for an error: one short line, also if its `__repr__` fails."""
    try:
        text = repr(value)
    except Exception:  # noqa: BLE001 - `__repr__` is code of the program, and the error is about another fault
        text = f"a {type(value).__name__}"
    return text if len(text) <= REPR_LENGTH else f"{text[:REPR_LENGTH]}..."


def _refuse(where: str, wanted: str, value: object) -> ConfigError:
    # A secret never appears in an error, even if it has the wrong type.
    found = type(value).__name__ if where in _SECRETS else shown(value)
    return ConfigError(f"{where} is {wanted}, not {found}")


# Checks for annotations


def _fit_of(hint: Any) -> Fit:
    """Return the function that checks an argument with this annotation."""
    origin, inner = get_origin(hint), get_args(hint)
    fit: Fit
    if origin is Annotated:
        bounds = next((each for each in inner[1:] if isinstance(each, Between)), INT64)
        fit = _whole(bounds) if inner[0] is int else _fit_of(inner[0])
    elif origin in {Union, types.UnionType}:
        fit = _any_of({each: _fit_of(each) for each in inner}, _wanted(hint))
    elif origin is Literal:
        fit = _one_of(inner, _wanted(hint))
    elif _is(hint, Mapping):
        fit = _mapping(_fit_of(inner[0]), _fit_of(inner[1]), _wanted(hint))
    elif _is(hint, Iterable) and origin is not tuple:
        fit = _items(_fit_of(inner[0]), _wanted(hint))
    elif origin is not None and issubclass(origin, Callable):  # type: ignore[arg-type]  # it is a class at run time
        fit = _callable
    else:
        fit = _plain(origin or hint)
    return fit


def _plain(hint: Any) -> Fit:
    known: dict[Any, Fit] = {int: _whole(INT64), float: _number, TopicPartition: _partition}
    if hint in known:
        return known[hint]
    protocol = getattr(hint, "_is_protocol", False)
    if not isinstance(hint, type) or hint in {Any, object} or protocol:
        return _anything
    wanted = _wanted(hint)
    parts: dict[str, Fit] = {}
    if is_dataclass(hint):
        hints = typing.get_type_hints(hint, include_extras=True)
        parts = {each.name: _fit_of(hints[each.name]) for each in fields(hint)}

    def fit(where: str, value: Any) -> Any:
        if not isinstance(value, hint):
            raise _refuse(where, wanted, value)
        for name, fit_part in parts.items():
            fit_part(f"{name} of {where}", getattr(value, name))
        return value

    return fit


def _anything(_where: str, value: Any) -> Any:
    return value


def _whole(bounds: Between) -> Fit:
    def fit(where: str, value: Any) -> int:
        if isinstance(value, bool):
            raise _refuse(where, "a whole number", value)
        try:
            number = operator.index(value)
        except TypeError:
            raise _refuse(where, "a whole number", value) from None
        if not bounds.low <= number <= bounds.high:
            raise _refuse(where, f"a whole number from {bounds.low} to {bounds.high}", value)
        return number

    return fit


whole_number = _whole(Between(0, INT64.high))
"""Checks a number that is not negative, for methods that check their arguments themselves."""


def _number(where: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _refuse(where, "a number", value)
    if isinstance(value, float) and math.isnan(value):
        raise _refuse(where, "a number", value)
    return value


def _callable(where: str, value: Any) -> Any:
    if not callable(value):
        raise _refuse(where, "a function", value)
    return value


def _partition(where: str, value: Any) -> TopicPartition:
    match value:
        case (str(topic), number) if not isinstance(value, str):
            return TopicPartition(
                topic, _whole(Between(0, INT32.high))(f"the partition of {where}", number)
            )
        case _:
            raise _refuse(where, "a TopicPartition(topic, number)", value)


def _one_of(values: tuple[Any, ...], wanted: str) -> Fit:
    def fit(where: str, value: Any) -> Any:
        if not any(type(value) is type(each) and value == each for each in values):
            raise _refuse(where, wanted, value)
        return value

    return fit


def _any_of(fits: dict[Any, Fit], wanted: str) -> Fit:
    mappings = [fit for hint, fit in fits.items() if _is(hint, Mapping)]

    def fit(where: str, value: Any) -> Any:
        failure = _refuse(where, wanted, value)
        # A dictionary is also an iterable of its keys, but a dictionary in place of a list is a mistake.
        for each in mappings if mappings and isinstance(value, Mapping) else fits.values():
            try:
                return each(where, value)
            except ConfigError as error:
                if not str(error).startswith(f"{where} is ") or _FOR_ONE in str(error):
                    failure = error  # the type is right, and an item inside is wrong
        raise failure

    return fit


def _is(hint: Any, kind: type) -> bool:
    origin = get_origin(hint)
    return isinstance(origin, type) and issubclass(origin, kind)


def _mapping(fit_key: Fit, fit_value: Fit, wanted: str) -> Fit:
    def fit(where: str, value: Any) -> Any:
        if not isinstance(value, Mapping):
            raise _refuse(where, wanted, value)
        return {
            fit_key(f"a key of {where}", key): fit_value(f"{where}[{shown(key)}]", item)
            for key, item in value.items()
        }

    return fit


def _items(fit_item: Fit, wanted: str) -> Fit:
    def fit(where: str, value: Any) -> Any:
        single = isinstance(value, str | bytes | bytearray | memoryview | TopicPartition)
        if single or not isinstance(value, Iterable):
            raise ConfigError(f"{_refuse(where, wanted, value)}{_FOR_ONE}[{shown(value)}]")
        if isinstance(value, Mapping | set | frozenset):
            for item in value:
                fit_item(f"an item of {where}", item)
            return value
        return [fit_item(f"{where}[{index}]", item) for index, item in enumerate(value)]

    return fit


# Annotations in words

_WORDS: Final[dict[Any, str]] = {
    str: "text",
    int: "a whole number",
    float: "a number",
    bool: "True or False",
    bytes: "bytes",
    Any: "any object",
    object: "any object",
    type(None): "None",
    TopicPartition: "TopicPartition(topic, number)",
}


def _wanted(hint: Any) -> str:
    """Return the text of an annotation for errors."""
    origin, inner = get_origin(hint), get_args(hint)
    words = _WORDS.get(hint, "")
    if origin is Annotated:
        words = _wanted(inner[0])
    elif origin in {Union, types.UnionType}:
        words = " or ".join(dict.fromkeys(_wanted(each) for each in inner))
    elif origin is Literal:
        words = " or ".join(repr(each) for each in inner)
    elif _is(hint, Mapping):
        words = f"a dictionary of {_wanted(inner[0])} to {_wanted(inner[1])}"
    elif _is(hint, Iterable):
        words = f"a list of {_wanted(inner[0])}"
    elif origin is not None:
        words = "a function"
    elif isinstance(hint, type) and issubclass(hint, Enum):
        words = f"one of {', '.join(map(str, hint))}"
    return words or f"a {getattr(hint, '__name__', hint)}"
