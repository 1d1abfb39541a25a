"""The interface of serdes, and the register of their names."""

from __future__ import annotations

from collections.abc import Callable
from types import UnionType
from typing import Any, Final, Protocol, runtime_checkable

from headrace.errors import ConfigError
from headrace.registers import Named, Register
from headrace.serdes.plain import BytesSerde, JsonSerde, StringSerde
from headrace.serdes.shape import is_type
from headrace.serdes.typed import serde_of_type
from headrace.types import V, V_co


@runtime_checkable
class Serde(Protocol[V_co]):
    """Turns values into bytes and back. `Serde[Order]` returns an `Order` for bytes.

    A serde is never called with None, which is a record without a value.
    """

    def serialize(self, value: Any) -> bytes:
        """Return the bytes of a value. Any exception means that the value has none."""

    def deserialize(self, data: bytes) -> V_co:
        """Return the value of bytes. Any exception means that the bytes cannot be decoded."""


AnySerde = type[Any] | Serde | UnionType | str
"""The type of `serde=`: a type of values that are read from and written as JSON, a serde or its class, or a name."""
SerdeOf = type[Serde[V]] | type[V] | Serde[V] | UnionType | str
"""The type of `serde=` for type checkers that infer the type of values: `Order` is a `SerdeOf[Order]`."""

SERDES: Final[Register[Serde]] = Register(
    "serde",
    "headrace.serdes",
    "headrace.register_serde",
    {
        "bytes": BytesSerde,
        "str": StringSerde,
        "json": JsonSerde,
        "avro": "headrace.serdes.avro:AvroSerde",
        "avro-registry": "headrace.serdes.avro:registry_serde",
    },
)


def register_serde(name: str, factory: Callable[..., Serde]) -> None:
    """Register a serde under a name, which topics can name in `headrace.serde`.

    Args:
        name: The name.
        factory: A class or function that returns a serde. It is called with the topic's `headrace.serde.parameters` as
            keyword arguments.

    Raises:
        ConfigError: The name or the factory cannot be used.
    """
    SERDES.add(name, factory)


def resolve_serde(given: object) -> Serde:
    """Return the serde for a name, a class, a type or an object.

    Args:
        given: A registered name; the name of an entry point in the group `headrace.serdes`; a serde; the class of a
            serde, which is called without arguments; or a type: structs, dataclasses and pydantic models are read from
            and written as JSON. A `Named` comes from a topic's configuration, with parameters.

    Raises:
        ConfigError: The name is unknown, its parameters do not fit, or the object is not a serde.
    """
    if isinstance(given, Named):
        return _of_topic(given)
    if isinstance(given, str):
        return SERDES.make(Named(given))
    if is_serde_class(given):
        return _made(given)
    if isinstance(given, type) or is_type(given):
        serde: Serde = serde_of_type(given)
        return serde
    if isinstance(given, Serde):
        return given
    raise ConfigError(f"{given!r} is not a serde: it needs serialize(value) and deserialize(data)")


def is_serde_class(given: object) -> bool:
    """Return whether an object is the class of a serde, and not a type of values."""
    return isinstance(given, type) and issubclass(given, Serde)


def _of_topic(named: Named) -> Serde:
    if named.given is None:
        return SERDES.make(named)
    value = named.given.value
    if is_serde_class(value):
        return SERDES.build(named.name, value, named.parameters)
    return resolve_serde(value)


def _made(kind: Any) -> Serde:
    try:
        return SERDES.build(kind.__name__, kind, "")
    except ConfigError as error:
        raise ConfigError(
            f"{kind.__name__} is the class of a serde: pass an object, {kind.__name__}(...) ({error})"
        ) from error
