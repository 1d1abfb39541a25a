"""Partitioner, serdes and storage of a new topic: checks, and their names and parameters for its configuration."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from headrace.clients.flows.topic_settings import KEY_SERDE, PARAMETERS, PARTITIONER, SERDE
from headrace.clients.partitioners import (
    CHOOSE,
    PARTITIONERS,
    Partitioner,
    partitioner_factory,
)
from headrace.config.topic import TopicConfig
from headrace.errors import ConfigError
from headrace.ports import FileSystem
from headrace.registers import Named, Register
from headrace.serdes.serde import SERDES, AnySerde, is_serde_class, resolve_serde

Parameters = Mapping[str, Any]
PartitionerChoice = str | type[Any] | Partitioner
"""The type of `partitioner=`: a name, a class or an object."""
StorageChoice = str | type[Any] | FileSystem
"""The type of `storage=`: a name, a class or a log directory."""
_REGISTERS: Final[Mapping[str, Register[Any]]] = {
    PARTITIONER: PARTITIONERS,
    SERDE: SERDES,
    KEY_SERDE: SERDES,
}


class Strategies(NamedTuple):
    """The arguments of `create_topic`; None leaves a choice to the broker."""

    storage: StorageChoice | None = None
    partitioner: PartitionerChoice | None = None
    partitioner_parameters: Parameters | None = None
    serde: AnySerde | None = None
    serde_parameters: Parameters | None = None
    key_serde: AnySerde | None = None
    key_serde_parameters: Parameters | None = None

    def named(self, *, keeps_objects: bool) -> dict[str, Named]:
        """Return the names and parameters of partitioner and serdes for the topic, by the name of the setting.

        Args:
            keeps_objects: Whether the broker is in this process, so that it can store objects without a registered
                name.

        Raises:
            ConfigError: A name is unknown here, the parameters do not fit, or an argument is neither a name, nor a
                class or an object of the right kind.
        """
        rows = {
            PARTITIONER: ("partitioner", self.partitioner, self.partitioner_parameters),
            SERDE: ("serde", self.serde, self.serde_parameters),
            KEY_SERDE: ("key_serde", self.key_serde, self.key_serde_parameters),
        }
        found = {}
        for config, (argument, value, parameters) in rows.items():
            if value is None:
                if parameters is not None:
                    raise ConfigError(f"{argument}_parameters are given without {argument}")
                continue
            try:
                found[config] = _strategy(config, value, parameters, keeps_objects=keeps_objects)
            except ConfigError as error:
                raise ConfigError(f"{argument}: {error}") from error
        return found


def _strategy(
    config: str, value: Any, parameters: Parameters | None, *, keeps_objects: bool
) -> Named:
    register = _REGISTERS[config]
    if register is SERDES and not isinstance(value, str) and not is_serde_class(value):
        value = resolve_serde(value)
    elif register is PARTITIONERS and not isinstance(value, str):
        partitioner_factory(value)
    named = register.describe(value, parameters)
    if named.given is not None and not keeps_objects:
        named = Named(named.name, named.parameters)
    try:
        _make(config, named)
    except ConfigError as error:
        if register.known(named.name) is None:
            hint = (
                f"a broker in another process stores only its name: register {named.name!r} first"
                if not isinstance(value, str)
                else f"if only other processes know the name, give it in configs={{{config!r}: {named.name!r}}}"
            )
            raise ConfigError(f"{error}; {hint}") from error
        raise
    return named


def _make(config: str, named: Named) -> None:
    """Create a partitioner or serde to find errors in its arguments."""
    if _REGISTERS[config] is SERDES:
        resolve_serde(named)
    else:
        partitioner_factory(named)(_first)


def _first(_count: int) -> int:
    return 0


def configs_of(found: Mapping[str, Named]) -> dict[str, str]:
    """Return the settings of a topic for names and parameters."""
    configs = {config: named.name for config, named in found.items()}
    parameters = {
        config + PARAMETERS: named.parameters for config, named in found.items() if named.parameters
    }
    return {**configs, **parameters}


def check_topic_config(topic: TopicConfig) -> None:
    """Check that the parameters in a topic's configuration fit the names that this process knows.

    Brokers call this for requests of clients, so no factory is called and no package is imported.

    Raises:
        ConfigError: The parameters do not fit.
    """
    for config, register in _REGISTERS.items():
        name, parameters = (
            getattr(topic, each.replace(".", "_")) for each in (config, config + PARAMETERS)
        )
        if parameters and not name:
            raise ConfigError(f"{config}{PARAMETERS} needs {config}, the name that it belongs to")
        offered = (CHOOSE,) if register is PARTITIONERS else ()
        try:
            register.check(name, parameters, offered)
        except ConfigError as error:
            raise ConfigError(f"{config}{PARAMETERS}: {error}") from error


def check_configs(configs: Mapping[str, str]) -> None:
    """Check names and parameters by calling the factories that this process knows. Only clients may do this.

    Args:
        configs: Settings of a topic. Names without parameters are not checked.

    Raises:
        ConfigError: The parameters do not fit, or a factory raised an error.
    """
    for config, register in _REGISTERS.items():
        name, parameters = configs.get(config), configs.get(config + PARAMETERS)
        if name and parameters and register.known(name) is not None:
            try:
                _make(config, Named(name, parameters))
            except ConfigError as error:
                raise ConfigError(f"{config}{PARAMETERS}: {error}") from error


def doubtful_names(configs: Mapping[str, str]) -> list[str]:
    """Return warnings about unknown names that are similar to known names."""
    warnings = []
    for config, register in _REGISTERS.items():
        name = configs.get(config)
        if name and register.known(name) is None and name not in (names := register.names()):
            near = [each for each in register.near(name) if each in names]
            if near:
                warnings.append(
                    f"{config}={name}: this process knows no {register.kind} of that name; did you mean "
                    f"{' or '.join(near)}?"
                )
    return warnings
