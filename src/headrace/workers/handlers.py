"""The handler of a worker: how to call it, according to the signature of a function or of an object's `handle`."""

from __future__ import annotations

import functools
import inspect
import typing
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from headrace.errors import ConfigError
from headrace.workers.context import SyncContext

DEFAULT_BATCH: Final = 100
MAX_LAYERS: Final = 32
"""Decorators that are looked through, at most."""
_POSITIONAL: Final = (
    inspect.Parameter.POSITIONAL_ONLY,
    inspect.Parameter.POSITIONAL_OR_KEYWORD,
)
_CACHE: Final = type(functools.lru_cache(lambda: None))


@dataclass(frozen=True, slots=True)
class Handler:
    """A function that handles records, or batches of them."""

    call: Callable[..., Any]
    name: str
    is_async: bool
    """Whether it is a coroutine function. Others run in threads; what can be awaited of their results is awaited."""
    wants_batches: bool
    schema: Any
    """The type of a value, by the annotation; None where there is none."""
    context: str | None
    """The name of the parameter for the context; None where there is none."""


def read_handler(target: Any) -> Handler:
    """Return how to call a handler.

    Args:
        target: A function or coroutine function with a parameter for the value, and optionally one named `context`; or
            an object, or a class without arguments, with a method `handle(batch)`.

    Raises:
        ConfigError: It is none of these, it would return without having handled anything (a generator function, say),
            or its annotation cannot be read.
    """
    name = str(getattr(target, "__name__", type(target).__name__))
    call, wants_one = _callable_of(name, target)
    for layer in layers(call):
        _refuse(name, layer)
    parameters = _parameters(name, call)
    context = _context_of(name, parameters)
    _check_call(name, call, context)
    is_async = any(map(inspect.iscoroutinefunction, (call, _call_of(call))))
    if is_async and context is not None:
        _check_context(name, call, parameters)
    schema = _plain(_annotation(name, call, parameters[0]))
    item = _item_of(name, schema)
    return Handler(
        call=call,
        name=name,
        is_async=is_async,
        wants_batches=item is not None or not wants_one,
        schema=_known(item[0] if item is not None else schema),
        context=context,
    )


def refuse_coroutines(what: str, *functions: object) -> None:
    """Make sure that functions can be called without `await`.

    Args:
        what: What they are, for the message.
        functions: The functions; None is passed over.

    Raises:
        ConfigError: One is a coroutine function, or a generator function.
    """
    for function in functions:
        if function is None:
            continue
        for layer in layers(function):
            if inspect.iscoroutinefunction(layer) or _is_generator_function(layer):
                raise ConfigError(
                    f"{what} is called without `await`, and {_text(function)} is a coroutine function or a generator "
                    "function: give a plain function"
                )


def layers(call: Any) -> Iterator[Any]:
    """Yield what is called, and what that calls in turn, as far as decorators tell (`functools.wraps`, partials)."""
    for _ in range(MAX_LAYERS):
        yield call
        if isinstance(call, functools.partial):
            call = call.func
        elif (inner := getattr(call, "__wrapped__", None)) is not None or (
            inner := getattr(call, "__func__", None)
        ) is not None:
            call = inner
        elif not inspect.isroutine(call) and inspect.ismethod(_call_of(call)):
            call = _call_of(call)
        else:
            return


def _call_of(target: Any) -> Any:
    return getattr(target, "__call__", None)  # noqa: B004 - the method itself is wanted


def _callable_of(name: str, target: Any) -> tuple[Callable[..., Any], bool]:
    """Return what is to be called, and whether it takes one value unless its annotation says otherwise."""
    if isinstance(target, classmethod):
        raise ConfigError(
            f"the handler {name!r} is decorated before it is a method of its class: write "
            f"app.worker(...)(TheClass.{name}) below the class"
        )
    if isinstance(target, staticmethod):
        target = target.__func__
    is_object = inspect.isclass(target) or not inspect.isroutine(target)
    if inspect.isclass(target):
        try:
            target = target()
        except TypeError as error:
            raise ConfigError(
                f"the class {name!r} is no handler: it cannot be made without arguments ({error}); give an object"
            ) from error
    call = getattr(target, "handle", target) if is_object else target
    if not callable(call):
        raise ConfigError(f"{name!r} is no handler: it is not callable and has no method handle")
    return call, call is target


def _refuse(name: str, layer: Any) -> None:
    """Refuse what returns without having handled anything."""
    if _is_generator_function(layer):
        raise ConfigError(
            f"the handler {name!r} is a generator function, or decorates one: calling it runs nothing. Return the "
            "results, as a list where there are several, instead of yielding them. Where a decorator runs the "
            "generator, call it in a function of its own: def handle(value): return decorated(value)"
        )
    if isinstance(layer, _CACHE):
        raise ConfigError(
            f"the handler {name!r} has a cache before it: records with equal values would not be handled. Cache what "
            "the handler calls instead"
        )


def _is_generator_function(layer: Any) -> bool:
    return inspect.isgeneratorfunction(layer) or inspect.isasyncgenfunction(layer)


def _parameters(name: str, call: Callable[..., Any]) -> list[inspect.Parameter]:
    try:
        return list(inspect.signature(call).parameters.values())
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"the parameters of the handler {name!r} cannot be read ({error}): call it in a function of your own, "
            "def handle(value): ..."
        ) from error


def _context_of(name: str, parameters: list[inspect.Parameter]) -> str | None:
    needed = [one for one in parameters if one.default is inspect.Parameter.empty]
    extra = [one for one in needed[1:] if one.name != "context" and one.kind in _POSITIONAL]
    if not parameters or parameters[0].kind not in _POSITIONAL or extra:
        raise ConfigError(
            f"the handler {name!r} takes the record's value, and optionally a parameter named `context`; "
            f"it has {', '.join(map(str, parameters)) or 'no parameters'}. (A decorator hides the parameters unless it "
            "uses functools.wraps)"
        )
    return "context" if any(one.name == "context" for one in parameters[1:]) else None


def _check_call(name: str, call: Callable[..., Any], context: str | None) -> None:
    """Make sure that a decorator passes on what the handler takes."""
    given = {} if context is None else {context: None}
    try:
        inspect.signature(call, follow_wrapped=False).bind(None, **given)
    except TypeError as error:
        raise ConfigError(
            f"the handler {name!r} cannot be called with {', '.join(['the value', *given])}: {error}. Does a decorator "
            "pass on the arguments?"
        ) from error


def _check_context(
    name: str, call: Callable[..., Any], parameters: list[inspect.Parameter]
) -> None:
    """Refuse the context of a plain function in a coroutine function: `publish` is to be awaited there."""
    [parameter] = [one for one in parameters[1:] if one.name == "context"]
    try:
        annotation = _annotation(name, call, parameter)
    except ConfigError:
        return  # a type that is imported for type checkers alone
    if annotation is SyncContext:
        raise ConfigError(
            f"the handler {name!r} is a coroutine function, whose context is a headrace.Context: `await "
            "context.publish(...)`. SyncContext is that of a plain function"
        )


def _annotation(name: str, call: Callable[..., Any], parameter: inspect.Parameter) -> Any:
    """Return a parameter's annotation, evaluated where the function was written."""
    annotation = parameter.annotation
    if annotation is inspect.Parameter.empty:
        return None
    if not isinstance(annotation, str):
        return annotation
    *_, function = layers(call)
    names = dict(getattr(function, "__globals__", {}))
    closure = inspect.getclosurevars(function).nonlocals if inspect.isfunction(function) else {}
    try:
        return eval(annotation, names, dict(closure))  # noqa: S307 - the program's own text
    except Exception as error:
        raise ConfigError(
            f"the annotation {annotation!r} of {parameter.name!r} in the handler {name!r} cannot be read ({error!r}): "
            "define the type at the top of the module, or give serde=THE_TYPE and leave the annotation out"
        ) from error


def _plain(schema: Any) -> Any:
    """Return a type without what `Annotated` says of a list, and without the name of an alias of one."""
    while True:
        if isinstance(schema, typing.NewType) and _is_list(_plain(schema.__supertype__)):
            schema = schema.__supertype__
        elif typing.get_origin(schema) is typing.Annotated and _is_list(schema.__origin__):
            schema = schema.__origin__
        else:
            return schema


def _item_of(name: str, schema: Any) -> tuple[Any, ...] | None:
    """Return the type of a list's items; None for what is no list."""
    if schema is list:
        return (None,)
    if _is_list(schema):
        return typing.get_args(schema) or (None,)
    if any(_is_list(_plain(each)) for each in typing.get_args(schema) if typing.get_args(schema)):
        _refuse_optional_list(name, schema)
    return None


def _refuse_optional_list(name: str, schema: Any) -> None:
    if type(None) in typing.get_args(schema):
        raise ConfigError(
            f"the annotation {schema} of the handler {name!r} means neither a value nor a batch: a batch is list[T], "
            "and never None; records without a value are None in it where T allows it, list[T | None]"
        )


def _is_list(schema: Any) -> bool:
    return schema is list or schema is typing.List or typing.get_origin(schema) is list  # noqa: UP006 - the old name


def _known(schema: Any) -> Any:
    return None if schema in (Any, object) else schema


def _text(function: object) -> str:
    return str(getattr(function, "__qualname__", function))
