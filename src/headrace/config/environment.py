"""Broker settings in environment variables, by the rules of the official image of Apache Kafka (KIP-975).

`KAFKA_NUM_PARTITIONS` is `num.partitions`: `_` stands for a dot, `__` for `_`, and `___` for a hyphen. Other variables
with the prefix `KAFKA_`, such as `KAFKA_OPTS`, are not settings of a broker and are ignored.
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
"""The variables with which the image names files in its own directory of secrets."""
_SIMILAR: Final = 0.85


class FromEnvironment(NamedTuple):
    """The settings of a broker in environment variables."""

    settings: dict[str, str]
    """The values as text, by Kafka's name of the setting."""
    doubtful: dict[str, str]
    """The variables whose names resemble a setting, each with a remedy."""


def option_name(variable: str) -> str:
    """Return the option that an environment variable names. The variable has the prefix `KAFKA_`."""
    name = variable.removeprefix(PREFIX)
    return _ESCAPE.sub(lambda match: _ESCAPES[match[0]], name).lower()


def from_environment(environment: Mapping[str, str]) -> FromEnvironment:
    """Read the settings of a broker from environment variables.

    Args:
        environment: The variables. Empty variables and those without the prefix are ignored.
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
    """Return the environment variable that names an option."""
    escapes = {character: escape for escape, character in _ESCAPES.items()}
    return PREFIX + "".join(escapes.get(character, character) for character in name).upper()
