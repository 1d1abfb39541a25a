"""Registers of factories: the serdes, partitioners and storages that a topic's configuration can name.

A name is built in, registered by the program (`headrace.register_serde`, ...), or an entry point of an installed
package. A factory is called with the topic's parameters as keyword arguments, so a class with a suitable `__init__` is
a factory. A topic's configuration never names code to import: a client calls only factories that its own process has
registered or its installed packages offer.
"""

from __future__ import annotations

import difflib
import inspect
import json
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, TypeVar

from headrace.errors import ConfigError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

NAME_LIMIT: Final = 255
"""The longest name of a factory, in characters."""
PARAMETERS_LIMIT: Final = 32_767
"""The longest text of parameters, in bytes of UTF-8; Kafka's clients read no longer texts in a configuration."""
_SHOWN: Final = 80

T = TypeVar("T")


def entry_points(**selected: str) -> Any:
    """Return the entry points of installed packages, selected by group and optionally by name."""
    from importlib import metadata  # noqa: PLC0415 - slow to load, and seldom needed

    return metadata.entry_points(**selected)


class Given:
    """An object or a class that a program gave to `create_topic` in the broker's own process."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value


class Named(NamedTuple):
    """The name and the parameters of a serde or partitioner in a topic's configuration."""

    name: str
    parameters: str = ""
    """The parameters, a JSON object as text; "" is none."""
    given: Given | None = None
    """The object that was given for the name in this process; None if the register must be asked."""


class Register(Generic[T]):
    """The factories of one kind, by name."""

    def __init__(
        self, kind: str, group: str, adding: str, built_in: Mapping[str, Callable[..., T] | str]
    ) -> None:
        """Prepare a register.

        Args:
            kind: The kind of objects that the factories make, for messages, such as "serde".
            group: The group of entry points in which packages offer factories.
            adding: The name of the function with which programs register factories, for messages.
            built_in: Factories by name. A text MODULE:ATTRIBUTE is imported when it is first used.
        """
        self.kind = kind
        self.group = group
        self._adding = adding
        self._factories = dict(built_in)

    def add(self, name: str, factory: Callable[..., T]) -> None:
        """Register a factory under a name; it replaces an earlier factory of that name.

        Raises:
            ConfigError: The name or the factory cannot be used.
        """
        check_name(name)
        if not callable(factory):
            raise ConfigError(f"the factory of {self.kind} {name!r} is not callable: {factory!r}")
        self._factories[name] = factory

    def find(self, name: str) -> Callable[..., T]:
        """Return the factory of a name, also one that an installed package offers.

        Raises:
            ConfigError: There is no factory of that name, or its package cannot be imported.
        """
        factory = self.known(name)
        if factory is None:
            offered = next(iter(entry_points(group=self.group, name=name)), None)
            if offered is None:
                raise ConfigError(self.unknown(name))
            factory = self._factories[name] = self._load(offered)
        return factory

    def known(self, name: str) -> Callable[..., T] | None:
        """Return the factory of a name that is built in or registered; None for others. Packages are not searched."""
        factory = self._factories.get(name)
        if isinstance(factory, str):
            module, _, attribute = factory.partition(":")
            factory = self._factories[name] = getattr(import_module(module), attribute)
        return factory

    def names(self) -> list[str]:
        """Return every name that `find` knows, sorted."""
        return sorted({*self._factories, *(each.name for each in entry_points(group=self.group))})

    def name_of(self, factory: object) -> str | None:
        """Return a name under which a factory is registered; None if it is not."""
        return next((name for name, each in self._factories.items() if each is factory), None)

    def near(self, name: str) -> list[str]:
        """Return known names that are similar to a mistyped name, the most similar first."""
        return difflib.get_close_matches(name[:NAME_LIMIT], self.names(), n=2)

    def unknown(self, name: str) -> str:
        """Return the message of an error about an unknown name."""
        near = self.near(name)
        hint = f"; did you mean {' or '.join(map(repr, near))}?" if near else ";"
        return (
            f"no {self.kind} is called {name[:NAME_LIMIT]!r}: known are {', '.join(self.names())}{hint} A {self.kind} "
            f"of your own is made known by {self._adding}(name, class), or by an installed package as an entry point "
            f"in the group {self.group}"
        )

    def describe(self, given: Any, parameters: Mapping[str, Any] | None = None) -> Named:
        """Return the name and the parameters that a topic stores for a name, a class or an object.

        Args:
            given: A name, a class or an object. The name of a class or object is its attribute `name` if that is text,
                or the name under which its class is registered, or MODULE.CLASS. The parameters of an object are its
                attribute `parameters`, if it has one.
            parameters: The parameters for a name or a class. None is no parameters.

        Raises:
            ConfigError: The name or the parameters cannot be stored.
        """
        if isinstance(given, str):
            check_name(given)
            return Named(given, render_parameters(parameters))
        kind = given if isinstance(given, type) else type(given)
        name = getattr(given, "name", None)
        if not isinstance(name, str):
            name = self.name_of(kind) or f"{kind.__module__}.{kind.__qualname__}"
        check_name(name)
        if given is not kind:
            if parameters:
                raise ConfigError(
                    f"parameters are for a name or a class: {kind.__name__} is an object, which has its own"
                )
            own = getattr(given, "parameters", None)
            parameters = own if isinstance(own, Mapping) else None
        return Named(name, render_parameters(parameters), Given(given))

    def check(self, name: str, parameters: str, offered: tuple[str, ...] = ()) -> None:
        """Check that parameters fit the factory of a name, without a call of it. An unknown name accepts any.

        Args:
            name: The name of the factory.
            parameters: The parameters, a JSON object as text; "" is none.
            offered: Names of further arguments that the factory gets if it has such parameters.

        Raises:
            ConfigError: The parameters do not fit.
        """
        values = parse_parameters(parameters)
        factory = self.known(name)
        if factory is not None:
            self._fitting(name, factory, values, dict.fromkeys(offered))

    def make(self, named: Named, **offered: Any) -> T:
        """Return a new object, made by the factory of a name.

        Args:
            named: The name and the parameters.
            offered: Further arguments that the factory gets if it has such parameters.

        Raises:
            ConfigError: There is no factory of that name, the parameters do not fit, or the factory raised an error.
        """
        return self.build(named.name, self.find(named.name), named.parameters, **offered)

    def build(self, name: str, factory: Callable[..., T], parameters: str, **offered: Any) -> T:
        """Return a new object, made by a given factory; see `make`."""
        fitting = self._fitting(name, factory, parse_parameters(parameters), offered)
        try:
            return factory(**fitting)
        except Exception as error:
            text = str(error) if isinstance(error, ConfigError) else repr(error)
            raise ConfigError(f"the {self.kind} {name!r} cannot be made: {text}") from error

    def _fitting(
        self,
        name: str,
        factory: Callable[..., T],
        parameters: Mapping[str, Any],
        offered: Mapping[str, Any],
    ) -> dict[str, Any]:
        try:
            signature = inspect.signature(factory)
        except (TypeError, ValueError):  # a builtin without a signature: its call raises the error
            return dict(parameters)
        known = signature.parameters
        given = {each: value for each, value in offered.items() if each in known}
        try:
            # A name in both mappings raises a TypeError, too.
            signature.bind(**given, **parameters)
        except TypeError as error:
            takes = ", ".join(each for each in known if each not in offered) or "no parameters"
            raise ConfigError(
                f"the parameters of {self.kind} {name!r} do not fit: {error}; it takes {takes}"
            ) from None
        return {**parameters, **given}

    def _load(self, offered: EntryPoint) -> Callable[..., T]:
        try:
            loaded: Callable[..., T] = offered.load()
        except Exception as error:
            raise ConfigError(
                f"the {self.kind} {offered.name!r} of an installed package ({offered.value}) cannot be imported: "
                f"{error!r}"
            ) from error
        return loaded


def check_name(name: object) -> None:
    """Check the name of a serde, partitioner or storage.

    Raises:
        ConfigError: It is not a text of 1 to 255 printable characters.
    """
    if not isinstance(name, str) or not 1 <= len(name) <= NAME_LIMIT or not name.isprintable():
        raise ConfigError(
            f"a name is text of 1 to {NAME_LIMIT} printable characters, not {_short(name)}"
        )


def parse_parameters(text: str) -> dict[str, Any]:
    """Return parameters as keyword arguments.

    Args:
        text: A JSON object; "" is no parameters.

    Raises:
        ConfigError: It is not a JSON object, or it is too long.
    """
    if not text:
        return {}
    if len(text.encode(errors="surrogatepass")) > PARAMETERS_LIMIT:
        raise ConfigError(
            f"parameters have at most {PARAMETERS_LIMIT} bytes, which is the longest text that Kafka's clients read. "
            "Register a serde or partitioner that has larger ones in its own code, or use a schema registry"
        )
    try:
        values = json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        reason = "it is nested too deep" if isinstance(error, RecursionError) else error
        raise ConfigError(
            f'parameters are a JSON object, such as {{"modulus": 3}}, not {_short(text)}: {reason}'
        ) from None
    if not isinstance(values, dict):
        raise ConfigError(
            f'parameters are a JSON object, such as {{"modulus": 3}}, not {_short(text)}'
        )
    return values


def _refuse_constant(text: str) -> None:
    raise ValueError(f"{text} is not JSON")


def render_parameters(values: Mapping[str, Any] | None) -> str:
    """Return parameters as the text that a topic stores; "" if there are none.

    Raises:
        ConfigError: JSON cannot represent them, or they are too long.
    """
    if not values:
        return ""
    try:
        text = json.dumps(dict(values), separators=(",", ":"), ensure_ascii=False, allow_nan=False)
        text.encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise ConfigError(f"parameters have to be values of JSON: {error}") from None
    parse_parameters(text)
    return text


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
