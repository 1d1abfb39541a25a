"""The configuration and the core of a consumer from the arguments of its constructor."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from headrace.clients.assignors import AssignorChoice, choose_assignors
from headrace.clients.config import ConsumerConfig, parse_config, settle_group_protocol
from headrace.clients.consumer.core import ConsumerCore
from headrace.clients.engine import Engine
from headrace.serdes.serde import resolve_serde

_log: Final = logging.getLogger("headrace.clients.consumer")


def consumer_config(
    target: object, properties: Mapping[str, Any], *, client_id: str, **named: Any
) -> ConsumerConfig:
    """Return the configuration. Named arguments that are None count as not given.

    Raises:
        ConfigError: A property is unknown, malformed or contradicts another.
    """
    given = {name: value for name, value in named.items() if value is not None}
    where = {"bootstrap_servers": target} if isinstance(target, str) else {}
    return parse_config(ConsumerConfig, {**given, **properties}, client_id=client_id, **where)


def consumer_core(
    engine: Engine,
    config: ConsumerConfig,
    assignor: AssignorChoice | Sequence[AssignorChoice] | None,
    serde: object,
    key_serde: object,
) -> ConsumerCore:
    """Return the core of a consumer that logs warnings with the program's logging."""
    # An unknown assignor is an error of the constructor, not of the later join.
    if assignor is not None:
        given_too = {"partition_assignment_strategy"}
        protocol = settle_group_protocol(config.group_protocol, given_too)
        config = replace(config, group_protocol=protocol)
    chosen = choose_assignors(config.partition_assignment_strategy or "range")
    given = None if config.partition_assignment_strategy == "" else chosen
    if assignor is not None:
        given = choose_assignors(assignor)
    return ConsumerCore(
        engine,
        config,
        new_id=new_member_id,
        assignors=given,
        serde=None if serde is None else resolve_serde(serde),
        key_serde=None if key_serde is None else resolve_serde(key_serde),
        resolve_serde=resolve_serde,
        warn=lambda text: _log.warning("%s", text),
    )


def new_member_id() -> str:
    """Return an id for a member under the protocol `consumer`."""
    return str(uuid.uuid4())
