"""What a serde is, and the register of those with a name."""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import entry_points
from types import UnionType
from typing import Any, Protocol, runtime_checkable

from headrace.errors import ConfigError
from headrace.serdes.plain import BytesSerde, JsonSerde, StringSerde
from headrace.serdes.shape import is_type
from headrace.serdes.typed import serde_of_type
from headrace.types import V_co

ENTRY_POINTS = "headrace.serdes"


@runtime_checkable
class Serde(Protocol[V_co]):
    """Turns values into bytes and back; `Serde[Order]` makes an `Order` of bytes.

    None never gets here: it is a record without a value.
    """

    def serialize(self, value: Any) -> bytes:
        """Return a value's bytes; whatever is raised says why it has none."""

    def deserialize(self, data: bytes) -> V_co:
        """Return the value of bytes; whatever is raised says what is wrong with them."""


AnySerde = type[Any] | Serde | UnionType | str
"""What `serde=` takes: a type that is read from JSON and written as JSON, a serde, or a name."""

_FACTORIES: dict[str, Callable[[], Serde]] = {
    "bytes": BytesSerde,
    "str": StringSerde,
    "json": JsonSerde,
}


def register_serde(name: str, factory: Callable[[], Serde]) -> None:
    """Make a serde known under a name, which then may stand in a topic's `headrace.serde`.

    Args:
        name: The name.
        factory: Returns a serde; a class without arguments does.
    """
    _FACTORIES[name] = factory


def resolve_serde(given: object) -> Serde:
    """Return the serde of a name, of a type, or the one given.

    Args:
        given: A registered name, the name of an entry point in the group `headrace.serdes`, a serde, or a type:
            a struct, dataclass or pydantic model is read from and written as JSON.

    Raises:
        ConfigError: Nothing has that name, or the object is no serde.
    """
    if isinstance(given, str):
        return _named(given)()
    if isinstance(given, type) and issubclass(given, Serde):
        raise ConfigError(
            f"{given.__name__} is the class of a serde: give an object, {given.__name__}()"
        )
    if isinstance(given, type) or is_type(given):
        serde: Serde = serde_of_type(given)
        return serde
    if isinstance(given, Serde):
        return given
    raise ConfigError(f"{given!r} is no serde: it needs serialize(value) and deserialize(data)")


def _named(name: str) -> Callable[[], Serde]:
    factory = _FACTORIES.get(name)
    if factory is None:
        for entry in entry_points(group=ENTRY_POINTS, name=name):
            loaded: Callable[[], Serde] = entry.load()
            _FACTORIES[name] = loaded
            return loaded
        raise ConfigError(
            f"no serde is called {name!r}: known are {', '.join(sorted(_FACTORIES))}; one of your own is made known by "
            f"headrace.register_serde(name, class) or an entry point in {ENTRY_POINTS}"
        )
    return factory
