"""The configuration of a producer from the arguments of its constructor."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, Final

from headrace.clients.config import ProducerConfig, parse_config

_log: Final = logging.getLogger("headrace.clients.producer")


def warn(text: str) -> None:
    """Log a warning for the operator of the program."""
    _log.warning("%s", text)


def producer_config(
    target: object, properties: Mapping[str, Any], *, client_id: str, **named: Any
) -> ProducerConfig:
    """Return the configuration. Named arguments that are None count as not given.

    Raises:
        ConfigError: A property is unknown, malformed or contradicts another.
    """
    given = {name: value for name, value in named.items() if value is not None}
    where = {"bootstrap_servers": target} if isinstance(target, str) else {}
    return parse_config(ProducerConfig, {**given, **properties}, client_id=client_id, **where)
