"""What a worker calls, and how: read off the signature of a function, or of an object's `handle`."""

from __future__ import annotations

import functools
import inspect
import typing
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from headrace.errors import ConfigError

DEFAULT_BATCH: Final = 100
_POSITIONAL: Final = (
    inspect.Parameter.POSITIONAL_ONLY,
    inspect.Parameter.POSITIONAL_OR_KEYWORD,
)


@dataclass(frozen=True, slots=True)
class Handler:
    """A function that handles records, or batches of them."""

    call: Callable[..., Any]
    name: str
    is_async: bool
    """Whether it is a coroutine function; others run in threads."""
    wants_batches: bool
    schema: Any
    """The type of a value, by the annotation; None where there is none."""
    context: str | None
    """The name of the parameter for the context; None where there is none."""


def read_handler(target: Any) -> Handler:
    """Return how to call a handler.

    Args:
        target: A function or coroutine function with a parameter for the value, and one named `context` if it likes; or
            an object, or a class without arguments, with a method `handle(batch)`.

    Raises:
        ConfigError: It is none of these, or its annotation has no meaning here.
    """
    name = str(getattr(target, "__name__", type(target).__name__))
    is_object = inspect.isclass(target) or not inspect.isroutine(target)
    if inspect.isclass(target):
        target = target()
    call = getattr(target, "handle", target) if is_object else target
    if not callable(call):
        raise ConfigError(f"{name!r} is no handler: it is not callable and has no method handle")
    wants_one = call is target
    if not inspect.isroutine(call) and not isinstance(call, functools.partial):
        call = call.__call__
    parameters = list(inspect.signature(call).parameters.values())
    context = _context_of(name, parameters)
    schema = _annotation(name, call, parameters[0])
    item = _item_of(schema)
    wants_batches = item is not None or not wants_one
    return Handler(
        call=call,
        name=name,
        is_async=inspect.iscoroutinefunction(call),
        wants_batches=wants_batches,
        schema=_known(item[0] if item is not None else schema),
        context=context,
    )


def _context_of(name: str, parameters: list[inspect.Parameter]) -> str | None:
    needed = [one for one in parameters if one.default is inspect.Parameter.empty]
    extra = [one for one in needed[1:] if one.name != "context" and one.kind in _POSITIONAL]
    if not parameters or parameters[0].kind not in _POSITIONAL or extra:
        raise ConfigError(
            f"the handler {name!r} takes the record's value, and if it likes a parameter named `context`; "
            f"it has {', '.join(one.name for one in parameters) or 'no parameters'}"
        )
    return "context" if any(one.name == "context" for one in parameters[1:]) else None


def _annotation(name: str, call: Callable[..., Any], parameter: inspect.Parameter) -> Any:
    """Return a parameter's annotation, evaluated where the function was written."""
    annotation = parameter.annotation
    if annotation is inspect.Parameter.empty:
        return None
    if not isinstance(annotation, str):
        return annotation
    call = call.func if isinstance(call, functools.partial) else call
    function = inspect.unwrap(getattr(call, "__func__", call))
    names = dict(getattr(function, "__globals__", {}))
    closure = inspect.getclosurevars(function).nonlocals if inspect.isfunction(function) else {}
    try:
        return eval(annotation, names, dict(closure))  # noqa: S307 - the program's own text
    except Exception as error:
        raise ConfigError(
            f"the annotation {annotation!r} of {parameter.name!r} in the handler {name!r} cannot be read ({error!r}): "
            "define the type at the top of the module, or give serde=THE_TYPE and leave the annotation out"
        ) from error


def _item_of(schema: Any) -> tuple[Any, ...] | None:
    """Return the type of a list's items; None for what is no list."""
    if schema is list:
        return (None,)
    if typing.get_origin(schema) is list:
        return typing.get_args(schema)
    return None


def _known(schema: Any) -> Any:
    return None if schema in (Any, object) else schema
