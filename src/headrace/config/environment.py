"""Broker settings in variables of the environment, as the official image of Apache Kafka takes them (KIP-975).

`KAFKA_NUM_PARTITIONS` is `num.partitions`: a `_` stands for a dot, `__` for `_`, and `___` for a hyphen. Other
variables that begin with `KAFKA_`, such as `KAFKA_OPTS`, are no settings of a broker and are left alone.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from typing import Final, NamedTuple

from headrace.config.broker import BROKER_ALIASES, BROKER_OPTIONS
from headrace.config.foreign import DIRECTORY_OPTIONS, kafka_options
from headrace.config.security import LISTENER_PREFIX

PREFIX: Final = "KAFKA_"
_ESCAPES: Final = {"___": "-", "__": "_", "_": "."}
_ESCAPE: Final = re.compile("_{1,3}")
_STORES_OF_THE_IMAGE: Final = frozenset(
    f"KAFKA_SSL_{store}_{what}"
    for store in ("KEYSTORE", "TRUSTSTORE", "KEY")
    for what in ("FILENAME", "CREDENTIALS")
)
"""Variables by which the image names files in its own directory of secrets."""
_SIMILAR: Final = 0.85


class FromEnvironment(NamedTuple):
    """Settings of a broker that come from environment variables."""

    settings: dict[str, str]
    """The values as text, by Kafka's name of the setting."""
    doubtful: dict[str, str]
    """Variables whose names resemble a setting, each with what to do about it."""


def option_name(variable: str) -> str:
    """Return the option that a variable of the environment names; the variable begins with `KAFKA_`."""
    name = variable.removeprefix(PREFIX)
    return _ESCAPE.sub(lambda match: _ESCAPES[match[0]], name).lower()


def from_environment(environment: Mapping[str, str]) -> FromEnvironment:
    """Return the settings of a broker that variables of the environment give.

    Args:
        environment: The variables; those without the prefix, and empty ones, are passed over.
    """
    known = {*BROKER_OPTIONS, *BROKER_ALIASES, *DIRECTORY_OPTIONS, *kafka_options()}
    found = FromEnvironment({}, {})
    for variable, text in sorted(environment.items()):
        if not variable.startswith(PREFIX) or not text:
            continue
        name = option_name(variable)
        if name in known or name.startswith(LISTENER_PREFIX):
            found.settings[name] = text
        elif variable in _STORES_OF_THE_IMAGE:
            found.doubtful[variable] = (
                "name a PEM file with KAFKA_SSL_KEYSTORE_LOCATION or KAFKA_SSL_TRUSTSTORE_LOCATION"
            )
        elif near := difflib.get_close_matches(name, known, n=1, cutoff=_SIMILAR):
            found.doubtful[variable] = f"did you mean {variable_of(near[0])}?"
    return found


def variable_of(name: str) -> str:
    """Return the variable of the environment that names an option."""
    escapes = {character: escape for escape, character in _ESCAPES.items()}
    return PREFIX + "".join(escapes.get(character, character) for character in name).upper()
