"""Read the descriptions of settings from code: docstrings below attributes, and sections of Google style docstrings."""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, Field, fields
from types import MappingProxyType
from typing import Any, Final, Literal, NamedTuple, get_args, get_origin

from tools.reference.markdown import code, prose, value_of

STARS: Final[Mapping[object, str]] = {
    inspect.Parameter.VAR_POSITIONAL: "*",
    inspect.Parameter.VAR_KEYWORD: "**",
}
"""The stars before the names of some kinds of parameters."""


class Declared(NamedTuple):
    """One setting, argument or attribute."""

    name: str
    type: str
    default: str
    meaning: str


def attribute_docs(owner: type[Any]) -> dict[str, str]:
    """Return the docstrings that stand below the attributes of a class and of its base classes."""
    found: dict[str, str] = {}
    for each in reversed(owner.__mro__):
        if each.__module__.startswith("headrace"):
            found |= _docs_in(each)
            found |= section(each.__doc__ or "", "Attributes")
    return found


def _docs_in(owner: type[Any]) -> Iterator[tuple[str, str]] | dict[str, str]:
    tree = ast.parse(textwrap.dedent(inspect.getsource(owner))).body[0]
    assert isinstance(tree, ast.ClassDef)
    found = {}
    for statement, following in zip(tree.body, tree.body[1:], strict=False):
        if (
            isinstance(statement, ast.AnnAssign)
            and isinstance(statement.target, ast.Name)
            and isinstance(following, ast.Expr)
            and isinstance(following.value, ast.Constant)
        ):
            found[statement.target.id] = " ".join(str(following.value.value).split())
    return found


def section(docstring: str, title: str) -> dict[str, str]:
    """Return the entries of a section, each on one line, by their names."""
    lines = inspect.cleandoc(docstring).splitlines()
    if f"{title}:" not in lines:
        return {}
    found: dict[str, str] = {}
    name = ""
    for line in lines[lines.index(f"{title}:") + 1 :]:
        if line and not line.startswith(" "):
            break
        if match := re.fullmatch(r"    \*{0,2}(\w+): ?(.*)", line):
            name = match[1]
            found[name] = match[2]
        elif name:
            found[name] = f"{found[name]} {line.strip()}".strip()
    return found


def first_sentence(docstring: str | None) -> str:
    """Return the first sentence of a docstring; "" if there is none."""
    first = inspect.cleandoc(docstring or "").partition("\n\n")[0]
    text = " ".join(first.split())
    match = re.match(r"(.*?[.!])(?:\s+[A-Z`]|$)", text)
    return prose((match[1] if match else text).rstrip(":"))


def fields_of(owner: type[Any], *, leave_out: frozenset[str] = frozenset()) -> list[Declared]:
    """Return the fields of a dataclass."""
    docs = attribute_docs(owner)
    found = []
    for each in fields(owner):
        if each.name in leave_out or each.name.startswith("_"):
            continue
        default = _default_of_field(each)
        meaning = prose(docs.get(each.name, ""))
        found.append(Declared(each.name, type_text(each.type), default, meaning))
    return found


def _default_of_field(each: Field[Any]) -> str:
    if each.default is not MISSING:
        return default_text(each.name, each.default)
    return (
        "" if each.default_factory is MISSING else default_text(each.name, each.default_factory())
    )


def arguments_of(
    function: Callable[..., Any],
    *,
    docs_of: Callable[..., Any] | None = None,
    leave_out: frozenset[str] = frozenset(),
) -> list[Declared]:
    """Return the arguments of a function or of a constructor, without `self`.

    Args:
        function: The function.
        docs_of: What has the section `Args` in its docstring; the function itself unless given.
        leave_out: Arguments that the page describes otherwise.
    """
    docs = section((docs_of or function).__doc__ or "", "Args")
    found = []
    for each in inspect.signature(function).parameters.values():
        if each.name in leave_out | {"self"}:
            continue
        stars = STARS.get(each.kind, "")
        default = "" if each.default is each.empty else default_text(each.name, each.default)
        if each.default is each.empty and not stars:
            default = "required"
        meaning = prose(docs.get(each.name, ""))
        found.append(
            Declared(
                stars + each.name,
                type_text(each.annotation, function.__globals__),
                default,
                meaning,
            )
        )
    return found


def type_text(annotation: object, names: Mapping[str, Any] = MappingProxyType({})) -> str:
    """Return an annotation as it is written in the code; the name of a `Literal` becomes its words.

    Args:
        annotation: The annotation.
        names: The names of the module with the annotation.
    """
    if get_origin(names.get(str(annotation))) is Literal:
        return ", ".join(code(repr(word)) for word in get_args(names[str(annotation)]))
    text = (
        annotation
        if isinstance(annotation, str)
        else getattr(annotation, "__name__", str(annotation))
    )
    return code(" ".join(text.split()))


def default_text(name: str, value: object) -> str:
    """Return a default of a Python argument."""
    if value is None or isinstance(value, str | bool):
        return code(repr(value))
    if isinstance(value, type):
        return code(value.__name__)
    if isinstance(value, tuple) and value and all(isinstance(each, type) for each in value):
        return ", ".join(code(each.__name__) for each in value)
    if isinstance(value, int):
        return value_of(name, value)
    shown = repr(value)
    return "" if shown in {"{}", "mappingproxy({})"} or " at 0x" in shown else code(shown)
