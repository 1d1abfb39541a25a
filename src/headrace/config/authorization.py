"""The options of authorization and the check of their values."""

from __future__ import annotations

import re
from typing import Final

from headrace.errors import ConfigError

USER: Final = "User"
"""The only type of principals. `headrace.security.principal` has the same constant, but this layer cannot import it."""

_ANOTHER: Final = re.compile(rf",\s*{USER}:")

AUTHORIZERS: Final = ("", "headrace", "org.apache.kafka.metadata.authorizer.StandardAuthorizer")
"""The values of `authorizer.class.name`. Each non-empty value enables the one authorizer of Headrace. No class is
loaded."""


def parse_super_users(text: str) -> frozenset[str]:
    """Parse `super.users`: principals separated by semicolons, because names in certificates contain commas.

    Raises:
        ConfigError: An entry is not User:NAME, or looks like two principals.
    """
    users = frozenset(filter(None, map(str.strip, text.split(";"))))
    for user in sorted(users):
        kind, colon, name = user.partition(":")
        if not kind or not colon or not name:
            raise ConfigError(f"{user[:100]!r} is no principal: write User:{user[:100]}")
        if kind != USER or name != name.strip():
            raise ConfigError(
                f"{user[:100]!r} would match no user: write {USER}:{name.strip()[:100]}, in this spelling"
            )
        if _ANOTHER.search(name):
            raise ConfigError(
                f"{user[:100]!r} would be one user: put semicolons between, no commas"
            )
    return users
