"""Every type of an annotation: it reads what is valid and refuses what is not, or it is refused itself.

The types are generated: each of `BASES` alone, and in each of `AROUND`: unions, collections and classes.
"""

from __future__ import annotations

import collections
import dataclasses
import datetime as dt
import decimal
import enum
import functools
import json
import pathlib
import typing
import uuid
from collections.abc import Callable
from typing import Annotated, Any, Generic, Literal, NamedTuple, NewType, Optional, TypeVar, Union

import annotated_types
import msgspec
import pydantic
import pytest
import typing_extensions

from headrace import App
from headrace.errors import ConfigError
from headrace.serdes.serde import resolve_serde
from headrace.serdes.typed import MAX_ERRORS, serde_of_type, writer_of_type

T = TypeVar("T")


class Color(enum.Enum):
    RED = "red"


class Struct(msgspec.Struct):
    id: int


class TaggedA(msgspec.Struct, tag="a"):
    a: int


class TaggedB(msgspec.Struct, tag="b"):
    b: int


@dataclasses.dataclass
class Data:
    id: int
    note: str | None = None

    def __post_init__(self) -> None:
        if self.id < 0:
            raise ValueError("negative")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Frozen:
    id: int


@pydantic.dataclasses.dataclass
class Checked:
    id: int
    name: Annotated[str, pydantic.Field(max_length=3)] = "x"


class Model(pydantic.BaseModel):
    id: int
    kids: list[Model] = []


class Kind(pydantic.BaseModel):
    kind: Literal["k"]


class Root(pydantic.RootModel[list[int]]):
    pass


class GenericModel(pydantic.BaseModel, Generic[T]):
    value: T


class Typed(typing_extensions.TypedDict):  # as below
    id: int


class Named(NamedTuple):
    id: int


@dataclasses.dataclass
class Envelope(Generic[T]):
    value: T


@dataclasses.dataclass
class HasModel:
    model: Model
    again: HasModel | None = None


class HasNamedModel(typing_extensions.TypedDict):  # pydantic reads typing's only since Python 3.12
    model: Model


class Tree(msgspec.Struct):
    left: Tree | None = None


Id = NewType("Id", int)
Raw = NewType("Raw", bytes)
Text = NewType("Text", str)

ONE, BAD = {"id": 1}, {"id": "no"}
# A type, a JSON value that it takes, what is read, and a JSON value that it does not take.
BASES: dict[str, tuple[Any, Any, Any, Any]] = {
    "int": (int, 1, 1, "no"),
    "float": (float, 1.5, 1.5, "no"),
    "bool": (bool, True, True, "perhaps"),
    "decimal": (decimal.Decimal, "1.5", decimal.Decimal("1.5"), "no"),
    "datetime": (
        dt.datetime,
        "2026-01-01T00:00:00Z",
        dt.datetime(2026, 1, 1, tzinfo=dt.UTC),
        "no",
    ),
    "uuid": (uuid.UUID, str(uuid.UUID(int=1)), uuid.UUID(int=1), "no"),
    "enum": (Color, "red", Color.RED, "no"),
    "literal": (Literal["a", 1], "a", "a", "no"),
    "new type": (Id, 1, 1, "no"),
    "dict": (dict[str, int], {"a": 1}, {"a": 1}, {"a": "no"}),
    "struct": (Struct, ONE, Struct(1), BAD),
    "tagged structs": (TaggedA | TaggedB, {"type": "b", "b": 1}, TaggedB(1), {"type": "c"}),
    "data class": (Data, ONE, Data(1), {"id": -1}),
    "frozen data class": (Frozen, ONE, Frozen(id=1), BAD),
    "typed dict": (Typed, ONE, {"id": 1}, BAD),
    "named tuple": (Named, [1], Named(1), ["no"]),
    "generic data class": (Envelope[Data], {"value": ONE}, Envelope(Data(1)), {"value": BAD}),
    "recursive struct": (Tree, {"left": {}}, Tree(Tree()), {"left": 1}),
    "model": (Model, {"id": 1, "kids": [ONE]}, Model(id=1, kids=[Model(id=1)]), BAD),
    "models": (Model | Kind, {"kind": "k"}, Kind(kind="k"), {"kind": "no"}),
    "root model": (Root, [1], Root([1]), ["no"]),
    "generic model": (GenericModel[int], {"value": 1}, GenericModel[int](value=1), {"value": "no"}),
    "checked data class": (Checked, ONE, Checked(1), {"id": 1, "name": "long"}),
    "model in a data class": (HasModel, {"model": ONE}, HasModel(Model(id=1)), {"model": BAD}),
    "model in a typed dict": (HasNamedModel, {"model": ONE}, {"model": Model(id=1)}, {"model": 1}),
    "generic of a model": (Envelope[Model], {"value": ONE}, Envelope(Model(id=1)), {"value": BAD}),
    "pydantic constraint": (Annotated[int, pydantic.Field(gt=0)], 1, 1, 0),
    "annotated constraint": (Annotated[int, annotated_types.Gt(0)], 1, 1, 0),
    "msgspec constraint": (Annotated[int, msgspec.Meta(gt=0)], 1, 1, 0),
    "pydantic's own type": (pydantic.PositiveInt, 1, 1, 0),
}


def in_class(kind: Any) -> Any:
    return dataclasses.make_dataclass("InClass", [("value", kind)])


def in_model(kind: Any) -> Any:
    if any(part in repr(kind) for part in ("Struct", "Tagged", "Tree", "Meta")):
        return None  # pydantic refuses it by itself, or takes no notice of msgspec's constraints
    return pydantic.create_model("InModel", value=(kind, ...))


# How a type is put into another: the type, and what is made of a JSON value and of a value.
AROUND: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any], Callable[..., Any]]] = {
    "alone": (lambda kind: kind, lambda data: data, lambda value, _: value),
    "or None": (lambda kind: kind | None, lambda data: data, lambda value, _: value),
    "Optional": (lambda kind: Optional[kind], lambda data: data, lambda value, _: value),  # noqa: UP045 - the old name
    "Union": (lambda kind: Union[None, kind], lambda data: data, lambda value, _: value),  # noqa: UP007 - the old name
    "annotated": (lambda kind: Annotated[kind, "a note"], lambda data: data, lambda v, _: v),
    "new type of": (lambda kind: NewType("Alias", kind), lambda data: data, lambda v, _: v),
    "dict of": (
        lambda kind: dict[str, kind],  # type: ignore[valid-type]  # made here
        lambda data: {"k": data},
        lambda value, _: {"k": value},
    ),
    "list in a dict": (
        lambda kind: dict[str, list[kind]],  # type: ignore[valid-type]  # made here
        lambda data: {"k": [data]},
        lambda value, _: {"k": [value]},
    ),
    "data class of": (in_class, lambda data: {"value": data}, lambda value, cls: cls(value)),
    "model of": (in_model, lambda data: {"value": data}, lambda v, cls: cls(value=v)),
}


@pytest.mark.parametrize("around", AROUND)
@pytest.mark.parametrize("base", BASES)
def test_a_type_accepts_valid_values_and_refuses_invalid_values(base: str, around: str) -> None:
    kind, valid, value, invalid = BASES[base]
    make, wrap, expect = AROUND[around]
    whole = make(kind)
    if whole is None:
        pytest.skip("that is for pydantic to refuse")
    handler = function_of(whole)
    app = App(group="g")
    app.worker("orders")(handler)
    serde = app._workers[0].serde
    assert serde is not None
    read = serde.deserialize(json.dumps(wrap(valid)).encode())
    assert read == expect(value, whole)
    assert serde.deserialize(serde.serialize(read)) == read
    with pytest.raises((ValueError, TypeError)):
        serde.deserialize(json.dumps(wrap(invalid)).encode())


def function_of(kind: Any) -> Callable[[Any], None]:
    def handle(value: Any) -> None: ...

    handle.__annotations__["value"] = kind
    return handle


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (bytes, b"\xffraw"),
        (bytes | None, b"\xffraw"),
        (Optional[bytes], b"\xffraw"),  # noqa: UP045 - the old name
        (Annotated[bytes, "a note"], b"\xffraw"),
        (Raw, b"\xffraw"),
        (Raw | None, b"\xffraw"),
        (bytearray, bytearray(b"\xffraw")),
        (memoryview, memoryview(b"\xffraw")),
    ],
)
def test_bytes_are_the_records_own(kind: Any, expected: Any) -> None:
    serde = serde_of_type(kind)
    assert serde.deserialize(b"\xffraw") == expected
    assert serde.serialize(expected) == b"\xffraw"


@pytest.mark.parametrize("kind", [str, str | None, Text, Annotated[str, "a note"]])
def test_text_is_the_records_own(kind: Any) -> None:
    serde = serde_of_type(kind)
    assert serde.deserialize(b'"caf\xc3\xa9"') == '"café"'
    assert serde.serialize("café") == "café".encode()


class Custom:
    pass


class HasCustom(msgspec.Struct):
    value: Custom


class Mixed(typing.TypedDict):
    struct: Struct
    model: Model


class MixedConstraint(typing.TypedDict):
    count: Annotated[int, msgspec.Meta(gt=0)]
    model: Model


class OwnSerde:
    def serialize(self, value: Any) -> bytes:
        return b""

    def deserialize(self, data: bytes) -> Any: ...


REFUSED: dict[str, tuple[Any, str]] = {
    "bytes or something": (bytes | int, "the bytes of a record do not show"),
    "bytes or a model": (bytes | Model, "the bytes of a record do not show"),
    "constrained text": (Annotated[str, pydantic.Field(max_length=3)], "constraints"),
    "constrained bytes": (Annotated[bytes, msgspec.Meta(max_length=3)], "constraints"),
    "a class of the program": (Custom, "Custom cannot be read from JSON"),
    "one or None": (Custom | None, "Custom cannot be read from JSON"),
    "one in a struct": (HasCustom, "Custom cannot be read from JSON"),
    "one in a dict": (dict[str, Custom], "Custom cannot be read from JSON"),
    "two of them": (Custom | OwnSerde, "may not contain more than one custom type"),
    "complex": (complex, "complex cannot be read from JSON"),
    "path": (pathlib.Path, "Path cannot be read from JSON"),
    "ordered dict": (collections.OrderedDict[str, int], "OrderedDict cannot be read from JSON"),
    "function": (Callable[[int], int], "no serde can be made"),
    "class": (type[Data], "no serde can be made"),
    "iterable": (typing.Iterable[int], "Iterable cannot be read from JSON"),
    "no return": (typing.NoReturn, "not supported"),
    "pydantic and msgspec": (Mixed, "mixes types of pydantic"),
    "a constraint of the other": (MixedConstraint, "mixes types of pydantic"),
    "an alias of a constraint that is mixed": (NewType("Alias", MixedConstraint), "mixes types"),
    "a missing name": (dict[str, "Missing"], "Missing"),  # type: ignore[name-defined]  # noqa: F821 - that is the case
    "a batch or None": (list[Data] | None, "neither a value nor a batch"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_type_that_cannot_be_read_is_refused_when_the_worker_is_declared(name: str) -> None:
    kind, reason = REFUSED[name]
    with pytest.raises(ConfigError, match=f"'handle'.*{reason}|{reason}.*'handle'"):
        App(group="g").worker("orders")(function_of(kind))


def test_a_serde_replaces_an_unsupported_annotation() -> None:
    app = App(group="g")
    app.worker("orders", serde=OwnSerde())(function_of(Custom))
    assert isinstance(app._workers[0].serde, OwnSerde)


class WithArguments(OwnSerde):
    def __init__(self, level: int) -> None:
        self.level = level


def test_the_class_of_a_serde_is_called_unless_it_takes_arguments() -> None:
    assert isinstance(resolve_serde(OwnSerde), OwnSerde)
    with pytest.raises(ConfigError, match=r"pass an object, WithArguments\(\.\.\.\) .*'level'"):
        resolve_serde(WithArguments)


@pytest.mark.parametrize("kind", [Data | None, dict[str, Model], Id, Model | Kind])
def test_a_type_that_is_no_class_makes_a_serde_for_clients_too(kind: Any) -> None:
    resolve_serde(kind)


@pytest.mark.parametrize(
    ("value", "data"),
    [
        (collections.OrderedDict(a=1), b'{"a":1}'),
        (collections.defaultdict(int, a=1), b'{"a":1}'),
        (HasModel(Model(id=1)), b'{"model":{"id":1,"kids":[]},"again":null}'),
        (bytearray(b"raw"), b"raw"),
        (Color.RED, b'"red"'),
        (functools.reduce(lambda a, b: a | b, [{"a": 1}, {"b": 2}]), b'{"a":1,"b":2}'),
    ],
)
def test_more_is_written_than_can_be_read(value: Any, data: bytes) -> None:
    assert writer_of_type(type(value)).serialize(value) == data


def test_the_number_of_reported_validation_errors_is_limited() -> None:
    serde = serde_of_type(list[Model])
    with pytest.raises(pydantic.ValidationError, match="100 validation errors"):
        serde.deserialize(b"[" + b",".join([b"1"] * MAX_ERRORS) + b"]")
    with pytest.raises(ValueError, match="101 validation errors, too many to name each") as raised:
        serde.deserialize(b"[" + b",".join([b"1"] * (MAX_ERRORS + 1)) + b"]")
    assert raised.value.__context__ is None, "its text would be made wherever the error is printed"
