"""`sasl.jaas.config`: a Java login module with its options, parsed as data.

Java loads the class in this setting, which has been used to run arbitrary code. Headrace loads nothing.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, NamedTuple

from headrace.errors import ConfigError

PLAIN_LOGIN_MODULE: Final = "org.apache.kafka.common.security.plain.PlainLoginModule"
SCRAM_LOGIN_MODULE: Final = "org.apache.kafka.common.security.scram.ScramLoginModule"

_ENTRY: Final = re.compile(r"([\w.$]+)\s+(\w+)\s*(.*?)\s*;?", re.DOTALL)
_OPTION: Final = re.compile(
    r"""([\w.@-]+)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|'((?:[^'\\]|\\.)*)'|([\w./:@+-]+))\s*"""
)
_CONTROLS: Final = frozenset({"required", "requisite", "sufficient", "optional"})
_USER: Final = "user_"


class LoginEntry(NamedTuple):
    """A login module and its options."""

    module: str
    options: Mapping[str, str]


def parse_jaas_entry(text: str) -> LoginEntry:
    """Parse one entry of a JAAS configuration.

    Raises:
        ConfigError: The text is not such an entry. The message contains no values.
    """
    entry = _ENTRY.fullmatch(text.strip())
    if entry is None:
        raise ConfigError(
            f"sasl.jaas.config is not of the form: {PLAIN_LOGIN_MODULE} required "
            'username="..." password="...";'
        )
    module, control, rest = entry.groups()
    if control.lower() not in _CONTROLS:
        raise ConfigError("sasl.jaas.config lacks the word 'required' behind the module")
    return LoginEntry(module, _options(rest))


def plain_users(text: str) -> dict[str, str]:
    """Return the passwords of PLAIN users, which a broker's entry defines with `user_<name>="<password>"`.

    As in Kafka, `username` and `password` of the entry do not define a user: with them the broker itself would log in.

    Args:
        text: The entry; empty for none.

    Raises:
        ConfigError: The text is no entry for PLAIN, or a user has no password.
    """
    if not text:
        return {}
    module, options = parse_jaas_entry(text)
    if module != PLAIN_LOGIN_MODULE:
        raise ConfigError(f"sasl.jaas.config of PLAIN has to name {PLAIN_LOGIN_MODULE}")
    users = {
        name.removeprefix(_USER): value for name, value in options.items() if name.startswith(_USER)
    }
    if not all(users) or not all(users.values()):
        raise ConfigError("sasl.jaas.config has a user without a name or a password")
    return users


def check_scram_entry(text: str) -> None:
    """Check a broker's entry for SCRAM, which may have the user as which the broker logs in to other brokers.

    Args:
        text: The entry; empty for none.

    Raises:
        ConfigError: The text is no entry for SCRAM.
    """
    if text and parse_jaas_entry(text).module != SCRAM_LOGIN_MODULE:
        raise ConfigError(f"sasl.jaas.config of SCRAM has to name {SCRAM_LOGIN_MODULE}")


def broker_login(text: str) -> tuple[str, str] | None:
    """Return the user and the password with which a broker logs in to other brokers; None if the entry has none.

    Args:
        text: The entry of the mechanism; empty for none.
    """
    options = parse_jaas_entry(text).options if text else {}
    username, password = options.get("username"), options.get("password")
    return (username, password) if username and password else None


def _options(text: str) -> dict[str, str]:
    options: dict[str, str] = {}
    position = 0
    while position < len(text):
        match = _OPTION.match(text, position)
        if match is None:  # not in the message, because it may be a secret
            raise ConfigError(
                'sasl.jaas.config: options are name="value", and a semicolon ends them'
            )
        name, double, single, bare = match.groups()
        if name in options:
            raise ConfigError(f"sasl.jaas.config has the option {name!r} twice")
        quoted = single if double is None else double
        options[name] = bare if quoted is None else re.sub(r"\\(.)", r"\1", quoted)
        position = match.end()
    return options
