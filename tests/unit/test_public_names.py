"""What `headrace` offers is there, and costs nothing until it is used."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import headrace

HOMES = vars(headrace)["_HOMES"]


@pytest.mark.parametrize("name", dir(headrace))
def test_every_name_is_there(name: str) -> None:
    assert getattr(headrace, name) is not None
    assert name == "__version__" or name in HOMES


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="Brooker"):
        getattr(headrace, "Brooker")  # noqa: B009 - the name is wrong on purpose


def test_the_asyncio_twins_are_an_attribute_and_a_module() -> None:
    aio = headrace.aio
    assert aio.__name__ == "headrace.aio"
    for name in aio.__all__:
        assert getattr(aio, name) is not getattr(headrace, name)


def test_importing_loads_nothing_but_the_package() -> None:
    code = "import sys, headrace; print(*[m for m in sys.modules if m.startswith('headrace.')])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


def test_type_checkers_are_told_the_same() -> None:
    stub = Path(headrace.__file__).with_suffix(".pyi").read_text()
    told = {match[2]: match[1] for match in re.finditer(r"from (\S+) import (\w+) as", stub)}
    assert told.pop("Final", None) is None
    assert told.pop("aio") == "headrace"
    assert told == HOMES
