"""The page of the public Python API, and the table of what asyncio programs await."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from enum import Enum
from importlib import import_module
from typing import Any, Final

import headrace
from headrace import aio
from tools.reference.declared import attribute_docs, default_text, first_sentence
from tools.reference.markdown import WIDTH, anchor, code, paragraphs, prose, table

HEAD: Final = """\
# Python API

The public names of Headrace, with their signatures and the first sentence of their docstrings.
`help(headrace.App.worker)` and editors show the whole docstrings, with every argument. Names that are not on this
page are not public: they may change without a note in the changelog. The package has type information (`py.typed`).

Arguments after `*` are given by name. [Settings](settings.md) describes arguments that are settings.

"""
ASYNCIO_HEAD: Final = """
## asyncio

`headrace.aio` has the clients `Producer`, `Consumer` and `Admin` for asyncio, with the methods and arguments of the
blocking clients of `headrace`. The rule is: **await every method.** A method that waits for a broker is a
coroutine. A method that waits for nothing acts at once; to await it is allowed and has no further effect. The table
lists every method.

* `async with` opens and closes a client: `async with headrace.aio.Producer("localhost:9092") as producer:`.
* `async for record in consumer:` reads records one by one.
* `await producer.send(...)` waits for space in the buffer and returns a future. `await` of that future waits for the
  delivery.
"""
MODULES: Final[tuple[tuple[str, tuple[str, ...] | None], ...]] = (
    ("headrace", None),
    ("headrace.errors", None),
    ("headrace.pipelines", None),
    ("headrace.kinesis", None),
    ("headrace.kinesis.blocking", None),
    ("headrace.kinesis.consumer", None),
    ("headrace.spark.archive.table", ("find_table",)),
    (
        "headrace.security.acls",
        ("AclBinding", "AclFilter", "Operation", "PatternType", "Permission", "ResourceType"),
    ),
    ("headrace.serdes.avro", ("AvroSerde", "RegistryAvroSerde", "SchemaRegistry")),
    ("headrace.ports", ("FileSystem", "SegmentStorage")),
    ("headrace.storage.conformance", ("CHECKS",)),
    ("headrace.testing", None),
    ("headrace.testing.factories", None),
    ("headrace.testing.kinesis", None),
)
"""Modules with public names, and these names; None stands for `__all__`, or for all public names defined there."""
CLIENTS: Final = ("Producer", "Consumer", "Admin")


def python_api_page() -> str:
    """Return the page of the Python API."""
    chapters = [(module, names or tuple(_public(module))) for module, names in MODULES]
    text = HEAD + table(
        ("module", "names"),
        (
            (f"[{code(module)}](#{anchor(module)})", ", ".join(map(code, names)))
            for module, names in chapters
        ),
    )
    text += ASYNCIO_HEAD + "".join(_awaited(name) for name in CLIENTS)
    return text + "".join(_chapter(module, names) for module, names in chapters)


def _public(module_name: str) -> list[str]:
    module = import_module(module_name)
    if hasattr(module, "__all__"):
        return sorted(name for name in module.__all__ if not name.startswith("__"))
    return [
        name
        for name, value in vars(module).items()
        if not name.startswith("_") and getattr(value, "__module__", "") == module_name
        and (inspect.isclass(value) or inspect.isfunction(value))
    ]  # fmt: skip


def _chapter(module_name: str, names: tuple[str, ...]) -> str:
    module = import_module(module_name)
    text = f"\n## `{module_name}`\n\n{first_sentence(module.__doc__)}\n"
    values = {name: getattr(module, name) for name in names}
    exceptions = {
        n: v for n, v in values.items() if inspect.isclass(v) and issubclass(v, Exception)
    }
    simple = [
        (code(f"{name}{signature(value)}"), _meaning(value))
        for name, value in values.items()
        if not inspect.isclass(value)
    ]
    if simple:
        text += "\n" + table(("name", "meaning"), simple)
    if exceptions:
        rows = ((code(n), code(_base(v)), first_sentence(v.__doc__)) for n, v in exceptions.items())
        text += "\n" + table(("exception", "is a", "meaning"), rows)
    for name, value in values.items():
        if inspect.isclass(value) and name not in exceptions:
            text += _class(name, value)
    return text


def _meaning(value: object) -> str:
    return first_sentence(value.__doc__) if callable(value) else code(type(value).__name__)


def _base(exception: type[Exception]) -> str:
    base = exception.__mro__[1]
    return base.__name__ if not base.__name__.startswith("_") else exception.__mro__[2].__name__


def _class(name: str, owner: type[Any]) -> str:
    text = f"\n### `{name}`\n\n{first_sentence(owner.__doc__)}\n"
    if issubclass(owner, Enum):
        members = ", ".join(code(each.name) for each in owner)
        text += "\n" + paragraphs(f"Members: {members}.")
    elif not getattr(owner, "_is_protocol", False):
        call = textwrap.fill(f"{name}{signature(owner)}", WIDTH, subsequent_indent="    ")
        text += f"\n```text\n{call}\n```\n"
    rows = list(_attributes(owner)) + list(_members(owner))
    return text + ("\n" + table(("member", "meaning"), rows) if rows else "")


def _attributes(owner: type[Any]) -> Iterator[tuple[str, str]]:
    docs = attribute_docs(owner)
    names = (
        [each.name for each in fields(owner)]
        if is_dataclass(owner)
        else list(getattr(owner, "_fields", docs))
    )
    for name in names:
        if not name.startswith("_"):
            yield code(name), prose(docs.get(name, ""))


def _members(owner: type[Any]) -> Iterator[tuple[str, str]]:
    """Yield the public methods and properties of a class, also those of its base classes in Headrace."""
    for name in sorted(dir(owner)):
        if name.startswith("_") or name in getattr(owner, "_fields", ()):
            continue
        home = next(each for each in owner.__mro__ if name in vars(each))
        if not home.__module__.startswith("headrace"):
            continue
        value = inspect.getattr_static(owner, name)
        if isinstance(value, property):
            yield code(name), first_sentence(value.__doc__)
        elif isinstance(value, classmethod | staticmethod) or inspect.isfunction(value):
            bound = getattr(owner, name)
            yield code(f"{name}{signature(bound)}"), first_sentence(bound.__doc__)


def signature(value: object) -> str:
    """Return the arguments of a function or class with their defaults, and what a function returns."""
    is_class = inspect.isclass(value)
    if not callable(value):
        return ""
    try:
        found = inspect.signature(value)
    except ValueError:
        return ""
    parts: list[str] = []
    star = False
    for each in found.parameters.values():
        if each.name == "self" or (each.name == "cls" and not parts):
            continue
        if each.kind is each.KEYWORD_ONLY and not star:
            parts.append("*")
        if each.kind in {each.KEYWORD_ONLY, each.VAR_POSITIONAL}:
            star = True
        parts.append(_parameter(each))
    text = f"({', '.join(parts)})"
    returned = found.return_annotation
    if not is_class and returned not in {found.empty, "None", None}:
        text += f" -> {_name(returned)}"
    return f"{text} (coroutine)" if inspect.iscoroutinefunction(value) else text


def _name(annotation: object) -> str:
    return (
        annotation
        if isinstance(annotation, str)
        else getattr(annotation, "__name__", str(annotation))
    )


def _parameter(each: inspect.Parameter) -> str:
    if each.kind is each.VAR_POSITIONAL:
        return f"*{each.name}"
    if each.kind is each.VAR_KEYWORD:
        return f"**{each.name}"
    if each.default is each.empty:
        return each.name
    return f"{each.name}={default_text('', each.default).strip('`') or '...'}"


def _awaited(client: str) -> str:
    asyncio, blocking = getattr(aio, client), getattr(headrace, client)
    names = sorted({*dir(asyncio), *dir(blocking)})
    rows = [
        (code(name), how_awaited(asyncio, name), first_sentence(_doc(asyncio, name)))
        for name in names
        if not name.startswith("_") and hasattr(asyncio, name)
    ]
    return f"\n### `aio.{client}`\n\n{table(('member', 'asyncio', 'meaning'), rows)}"


def _doc(owner: type[Any], name: str) -> str | None:
    return getattr(owner, name).__doc__  # type: ignore[no-any-return]  # every object has one


def how_awaited(owner: type[Any], name: str) -> str:
    """Return what an asyncio program writes before a member of a client."""
    value = inspect.getattr_static(owner, name)
    if isinstance(value, property):
        return "property, never awaited"
    if inspect.iscoroutinefunction(value):
        return "`await`"
    returned = _name(inspect.signature(value).return_annotation).partition("[")[0]
    result = getattr(inspect.getmodule(value), returned, None)
    if hasattr(result, "__await__"):
        return "at once, or `await`"
    return "`async with`" if hasattr(result, "__aenter__") else "at once, never awaited"
