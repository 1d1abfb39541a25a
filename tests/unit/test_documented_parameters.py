"""Editors show what the parameters of public classes mean: docstrings say it, in Google's style.

Each parameter of a constructor, and of a method with more than two parameters, is in the section Args. The sentence
may say what one or two are; where there is a section, it has them all.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import headrace
import headrace.aio
import headrace.kinesis
from headrace.errors import HeadraceError

IN_THE_SENTENCE = 2
CLASSES = {
    f"{module.__name__}.{name}": value
    for module in (headrace, headrace.aio, headrace.kinesis)
    for name in module.__all__
    if inspect.isclass(value := getattr(module, name))
    and not issubclass(value, HeadraceError | Exception)
}


def documented(function: Callable[..., Any]) -> set[str]:
    """Return the names in the sections Args and Attributes of a docstring."""
    text = inspect.getdoc(function) or ""
    found: set[str] = set()
    for section in re.findall(r"^(?:Args|Attributes):\n((?:[ ].*\n?|\n)*)", text, re.MULTILINE):
        found.update(re.findall(r"^ {4}(\w+): ", section, re.MULTILINE))
    return found


def methods(kind: type) -> Iterator[tuple[str, Callable[..., Any]]]:
    for name, member in inspect.getmembers(kind, inspect.isfunction):
        if not name.startswith("_") and member.__module__.startswith("headrace"):
            yield name, member


def parameters(function: Callable[..., Any]) -> set[str]:
    named = inspect.signature(function).parameters
    return {name for name in named if name not in {"self", "cls"} and not name.startswith("_")}


@pytest.mark.parametrize("name", CLASSES)
def test_every_parameter_of_a_constructor_is_documented(name: str) -> None:
    kind = CLASSES[name]
    if dataclasses.is_dataclass(kind) or hasattr(kind, "_fields") or "__init__" not in vars(kind):
        pytest.skip("fields are documented where they stand")
    assert not parameters(kind.__init__) - documented(kind.__init__) - documented(kind)


@pytest.mark.parametrize("name", CLASSES)
def test_every_parameter_of_a_method_is_documented(name: str) -> None:
    missing = {
        (method, parameter)
        for method, function in methods(CLASSES[name])
        for parameter in parameters(function) - documented(function)
        if documented(function) or len(parameters(function)) > IN_THE_SENTENCE
    }
    assert not missing


def test_every_argument_of_a_worker_is_documented() -> None:
    assert parameters(headrace.App.worker) == documented(headrace.App.worker)
    assert len(documented(headrace.App.worker)) > 15
