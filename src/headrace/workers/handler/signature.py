"""The handler of a worker: how to call it, according to the signature of a function or of an object's `handle`."""

from __future__ import annotations

import functools
import inspect
import typing
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from headrace.errors import ConfigError
from headrace.workers.handler.context import SyncContext

DEFAULT_BATCH: Final = 100
MAX_LAYERS: Final = 32
"""The most decorators around a handler that are examined."""
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
    """Whether the handler is a coroutine function. Plain functions run in threads; awaitable results are awaited."""
    wants_batches: bool
    schema: Any
    """The type of a value, from the annotation; None without one."""
    context: str | None
    """The name of the parameter for the context; None if the handler has none."""


def read_handler(target: Any) -> Handler:
    """Return how to call a handler.

    Args:
        target: A function or coroutine function with a parameter for the value, and optionally one named `context`; or
            an object with a method `handle(batch)`, or the class of such an object.

    Raises:
        ConfigError: The target is none of these, its call would run no code (a generator function, for example), or its
            annotation cannot be evaluated.
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
    """Check that functions can be called without `await`.

    Args:
        what: The name of the argument or role, for the message.
        functions: The functions. None is ignored.

    Raises:
        ConfigError: One of them is a coroutine function or a generator function.
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
    """Yield a callable, then the functions inside its decorators, if `functools.wraps` or a partial shows them."""
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
    """Return the callable, and whether it handles single values unless its annotation is a list."""
    if isinstance(target, classmethod):
        raise ConfigError(
            f"the handler {name!r} is a class method that is decorated inside its class, where it is not callable yet. "
            f"Write app.worker(...)(TheClass.{name}) below the class"
        )
    if isinstance(target, staticmethod):
        target = target.__func__
    is_object = inspect.isclass(target) or not inspect.isroutine(target)
    if inspect.isclass(target):
        try:
            target = target()
        except TypeError as error:
            raise ConfigError(
                f"the class {name!r} cannot be a handler: its constructor needs arguments ({error}). Pass an object"
            ) from error
    call = getattr(target, "handle", target) if is_object else target
    if not callable(call):
        raise ConfigError(f"{name!r} is no handler: it is not callable and has no method handle")
    return call, call is target


def _refuse(name: str, layer: Any) -> None:
    """Refuse a callable whose call would run no code of the handler."""
    if _is_generator_function(layer):
        raise ConfigError(
            f"the handler {name!r} is a generator function, or decorates one: a call of it runs no code. Return the "
            "results instead of yielding them; return several results as a list. If a decorator runs the generator, "
            "call the decorated function in a plain function: def handle(value): return decorated(value)"
        )
    if isinstance(layer, _CACHE):
        raise ConfigError(
            f"the handler {name!r} is decorated with a cache: it would handle only one of several records with equal "
            "values. Cache a function that the handler calls instead"
        )


def _is_generator_function(layer: Any) -> bool:
    return inspect.isgeneratorfunction(layer) or inspect.isasyncgenfunction(layer)


def _parameters(name: str, call: Callable[..., Any]) -> list[inspect.Parameter]:
    try:
        return list(inspect.signature(call).parameters.values())
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"the parameters of the handler {name!r} cannot be determined ({error}). Call it in a function of your "
            "own: def handle(value): ..."
        ) from error


def _context_of(name: str, parameters: list[inspect.Parameter]) -> str | None:
    needed = [one for one in parameters if one.default is inspect.Parameter.empty]
    extra = [one for one in needed[1:] if one.name != "context" and one.kind in _POSITIONAL]
    if not parameters or parameters[0].kind not in _POSITIONAL or extra:
        raise ConfigError(
            f"the handler {name!r} needs a parameter for the record's value, and may have one named `context`; "
            f"it has {', '.join(map(str, parameters)) or 'no parameters'}. (A decorator without functools.wraps hides "
            "the parameters)"
        )
    return "context" if any(one.name == "context" for one in parameters[1:]) else None


def _check_call(name: str, call: Callable[..., Any], context: str | None) -> None:
    """Check that the outermost decorator accepts the arguments of the handler."""
    given = {} if context is None else {context: None}
    try:
        inspect.signature(call, follow_wrapped=False).bind(None, **given)
    except TypeError as error:
        raise ConfigError(
            f"the handler {name!r} cannot be called with {', '.join(['the value', *given])}: {error}. Does each "
            "decorator pass on the arguments?"
        ) from error


def _check_context(
    name: str, call: Callable[..., Any], parameters: list[inspect.Parameter]
) -> None:
    """Refuse `SyncContext` in a coroutine function, where `publish` must be awaited."""
    [parameter] = [one for one in parameters[1:] if one.name == "context"]
    try:
        annotation = _annotation(name, call, parameter)
    except ConfigError:
        return  # the type is imported for type checkers only
    if annotation is SyncContext:
        raise ConfigError(
            f"the handler {name!r} is a coroutine function, so annotate its context as headrace.Context and use `await "
            "context.publish(...)`. SyncContext is for plain functions"
        )


def _annotation(name: str, call: Callable[..., Any], parameter: inspect.Parameter) -> Any:
    """Return a parameter's annotation, evaluated with the names of the function's module and closure."""
    annotation = parameter.annotation
    if annotation is inspect.Parameter.empty:
        return None
    if not isinstance(annotation, str):
        return annotation
    *_, function = layers(call)
    names = dict(getattr(function, "__globals__", {}))
    closure = inspect.getclosurevars(function).nonlocals if inspect.isfunction(function) else {}
    try:
        return eval(annotation, names, dict(closure))  # noqa: S307 - an annotation in the program's code
    except Exception as error:
        raise ConfigError(
            f"the annotation {annotation!r} of {parameter.name!r} in the handler {name!r} cannot be evaluated "
            f"({error!r}). Define the type at the top of the module, or pass serde=THE_TYPE and remove the annotation"
        ) from error


def _plain(schema: Any) -> Any:
    """Return the list type inside `Annotated` or `NewType`. Other types are returned unchanged."""
    while True:
        if isinstance(schema, typing.NewType) and _is_list(_plain(schema.__supertype__)):
            schema = schema.__supertype__
        elif typing.get_origin(schema) is typing.Annotated and _is_list(schema.__origin__):
            schema = schema.__origin__
        else:
            return schema


def _item_of(name: str, schema: Any) -> tuple[Any, ...] | None:
    """Return a tuple with the type of a list's items; None for other types."""
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
            f"the annotation {schema} of the handler {name!r} means neither a value nor a batch. A batch is never "
            "None: use list[T], or list[T | None] if records may have no value"
        )


def _is_list(schema: Any) -> bool:
    return schema is list or schema is typing.List or typing.get_origin(schema) is list  # noqa: UP006 - the old name


def _known(schema: Any) -> Any:
    return None if schema in (Any, object) else schema


def _text(function: object) -> str:
    return str(getattr(function, "__qualname__", function))
