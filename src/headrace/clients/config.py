"""Client properties under the names that users of Kafka's Java client and of librdkafka know."""

from __future__ import annotations

import difflib
import operator
from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any, Final, TypeVar

from headrace.clients.arguments import shown
from headrace.clients.security import (
    JAVA_ONLY,
    SECURITY_ALIASES,
    SecurityConfig,
    check_security,
    parse_callback,
    parse_identification,
    parse_mechanism,
    parse_protocol,
    translate_java,
)
from headrace.config.options import INT_MAX, LONG_MAX, render_value
from headrace.errors import ConfigError
from headrace.records.tags import TagFilter

C = TypeVar("C", bound="ClientConfig")

LONG_PROPERTIES: Final = {
    "buffer.memory",
    "linger.ms",
    "max.block.ms",
    "metadata.max.age.ms",
    "retry.backoff.max.ms",
    "retry.backoff.ms",
    "queue.buffering.max.ms",
}
"""Numbers of 64 bits, as in Kafka's client; the others have 32, in which the protocol sends some of them."""

ALIASES: Final[dict[str, str]] = {
    "metadata.broker.list": "bootstrap.servers",
    "request.required.acks": "acks",
    "compression.codec": "compression.type",
    "queue.buffering.max.ms": "linger.ms",
    "max.in.flight": "max.in.flight.requests.per.connection",
    "message.send.max.retries": "retries",
    "message.timeout.ms": "delivery.timeout.ms",
    "message.max.bytes": "max.request.size",
    "fetch.message.max.bytes": "max.partition.fetch.bytes",
    "fetch.wait.max.ms": "fetch.max.wait.ms",
    "socket.timeout.ms": "request.timeout.ms",
    **SECURITY_ALIASES,
}
"""librdkafka's name to the Java client's; of what protects connections, any other name to ours."""

DECIDED_BY_THE_COORDINATOR: Final = {
    "session_timeout_ms": "the broker's group.consumer.session.timeout.ms decides",
    "heartbeat_interval_ms": "the broker's group.consumer.heartbeat.interval.ms decides",
    "partition_assignment_strategy": "the coordinator divides partitions, by group.remote.assignor",
}
"""What only the protocol `classic` leaves to members, and who decides it under the protocol `consumer`."""

AUTO_IS_CLASSIC: Final = (*DECIDED_BY_THE_COORDINATOR, "group_instance_id")
"""What settles the protocol `auto`. A static member among them: one that was killed goes on at once when it is started
again, where under the protocol `consumer` it has to wait for the end of its former session."""

_OF_OTHER_CLIENTS: Final = {
    f"{what}.{which}": f"give {name}=, a name such as 'json', a type or a serde, which both writes and reads"
    for what, name in (("value", "serde"), ("key", "key_serde"))
    for which in ("serializer", "deserializer")
}
"""What other clients have in place of a named parameter, and what to give here."""

OFFSET_RESETS: Final = {
    "earliest": "earliest",
    "smallest": "earliest",
    "beginning": "earliest",
    "latest": "latest",
    "largest": "latest",
    "end": "latest",
    "none": "none",
    "error": "none",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientConfig(SecurityConfig):
    """What every client has."""

    bootstrap_servers: str = "127.0.0.1:9092"
    """Comma-separated HOST:PORT; one that answers is enough to find the others."""
    client_id: str = "headrace"
    request_timeout_ms: int = 30_000
    """How long an operation may take, attempts and pauses included, before it fails."""
    socket_connection_setup_timeout_ms: int = 10_000
    retry_backoff_ms: int = 100
    retry_backoff_max_ms: int = 1_000
    metadata_max_age_ms: int = 300_000
    receive_message_max_bytes: int = 128 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerConfig(ClientConfig):
    """What a producer has besides."""

    acks: int = -1
    """-1 (all in-sync replicas), 1 (the leader) or 0 (nobody)."""
    compression_type: str = "none"
    linger_ms: int = 5
    batch_size: int = 64 << 10
    """Bytes of records after which a batch is closed, before compression."""
    enable_idempotence: bool = True
    max_in_flight_requests_per_connection: int = 5
    retries: int = 2**31 - 1
    delivery_timeout_ms: int = 120_000
    buffer_memory: int = 32 << 20
    max_block_ms: int = 60_000
    max_request_size: int = 1 << 20
    recreate_topics: bool = True
    """Whether the broker may create a topic again that was deleted while the producer wrote to it."""
    transactional_id: str | None = None
    """Names the producer for transactions, over restarts: whoever comes with it later ends the one before."""
    transaction_timeout_ms: int = 60_000
    """How long a transaction may be open before its coordinator aborts it and the producer is of no more use."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerConfig(ClientConfig):
    """What a consumer has besides."""

    group_id: str | None = None
    group_instance_id: str | None = None
    group_protocol: str = "auto"
    """classic: members divide the partitions among themselves; consumer: the coordinator does (KIP-848); auto: consumer
    where the broker offers it, unless something is set that only classic knows or does better (AUTO_IS_CLASSIC)."""
    group_remote_assignor: str = ""
    """How the coordinator shall divide partitions, for the protocol `consumer`; "" leaves it to the coordinator."""
    auto_offset_reset: str = "latest"
    enable_auto_commit: bool = True
    auto_commit_interval_ms: int = 5_000
    session_timeout_ms: int = 45_000
    heartbeat_interval_ms: int = 3_000
    max_poll_interval_ms: int = 300_000
    max_poll_records: int = 500
    fetch_min_bytes: int = 1
    fetch_max_bytes: int = 50 << 20
    max_partition_fetch_bytes: int = 1 << 20
    fetch_max_wait_ms: int = 500
    isolation_level: str = "read_uncommitted"
    """read_committed leaves out records of aborted transactions."""
    tags: TagFilter | None = None
    """Only records with any of these tags; None is all."""
    check_crcs: bool = True
    allow_auto_create_topics: bool = False
    partition_assignment_strategy: str = ""
    """Names of assignors, best first, separated by commas; "" is the one that the group is attached with, or range."""
    client_rack: str = ""
    """Where the consumer stands, for assignors that care."""


def parse_config(config_class: type[C], properties: Mapping[str, Any], **defaults: Any) -> C:
    """Build a configuration from properties.

    Args:
        config_class: Which configuration.
        properties: Values by name, `request.timeout.ms` or `request_timeout_ms`; text is parsed. They win over
            `defaults`.
        defaults: Values by attribute name; None is left out.

    Raises:
        ConfigError: A property is unknown, or its value is not of the right form.
    """
    attributes = {field.name: field for field in fields(config_class)}
    values = {
        name: _parse(name.replace("_", "."), name, str(attributes[name].type), value)
        for name, value in defaults.items()
        if value is not None
    }
    for name, value in translate_java(properties).items():
        dotted = name.replace("_", ".")
        attribute = ALIASES.get(dotted, dotted).replace(".", "_")
        if attribute not in attributes:
            raise ConfigError(_unknown(name, config_class))
        kind = str(attributes[attribute].type)
        if value is None and kind.startswith("str"):
            continue  # a variable of the environment that is not set, say: it is not given
        values[attribute] = _parse(dotted, attribute, kind, value)
    if issubclass(config_class, ProducerConfig) and "enable_idempotence" not in values:
        # As in Kafka's client: acks or pipelining that rule idempotence out switch it off, unless it was asked for.
        in_flight = values.get("max_in_flight_requests_per_connection", 1)
        asked_for = values.get("transactional_id") is not None
        values["enable_idempotence"] = asked_for or (
            values.get("acks", -1) == -1 and in_flight <= 5
        )
    if issubclass(config_class, ConsumerConfig):
        protocol = values.get("group_protocol", attributes["group_protocol"].default)
        values["group_protocol"] = settle_group_protocol(protocol, values)
    config = config_class(**values)
    _check(config)
    return config


def check_names(config_class: type[ClientConfig], names: Iterable[str]) -> None:
    """Make sure that properties are known, where their values are parsed later.

    Raises:
        ConfigError: One is unknown.
    """
    attributes = {field.name for field in fields(config_class)}
    for name in names:
        dotted = name.replace("_", ".")
        known = ALIASES.get(dotted, dotted).replace(".", "_") in attributes or dotted in JAVA_ONLY
        if not known:
            raise ConfigError(_unknown(name, config_class))


def _unknown(name: str, config_class: type[ClientConfig]) -> str:
    dotted = name.replace("_", ".")
    if dotted in _OF_OTHER_CLIENTS:
        return f"unknown property {dotted!r}: {_OF_OTHER_CLIENTS[dotted]}"
    attribute = ALIASES.get(dotted, dotted).replace(".", "_")
    for other, role in ((ProducerConfig, "producer"), (ConsumerConfig, "consumer")):
        if any(attribute == field.name for field in fields(other)):
            return f"property {dotted!r} belongs to a {role}"
    known = [field.name.replace("_", ".") for field in fields(config_class)]
    known += [*ALIASES, *JAVA_ONLY]
    near = difflib.get_close_matches(dotted, known, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    return f"unknown property {dotted!r}{hint}"


def _parse(name: str, attribute: str, type_name: str, value: Any) -> Any:
    special = _SPECIAL.get(attribute)
    if special is not None:
        return special(name, value)
    if type_name == "bool":
        return _boolean(name, value)
    if type_name == "int":
        return _integer(name, value)
    if not isinstance(value, str | int | float):  # a number or a boolean is written as text
        raise ConfigError(f"property {name!r} wants text, not {type(value).__name__}")
    return render_value(value)


def _integer(name: str, value: Any) -> int:
    try:
        number = int(value) if isinstance(value, str) else operator.index(value)
    except (TypeError, ValueError):
        raise ConfigError(f"property {name!r} wants a whole number, not {shown(value)}") from None
    if number < 0:
        raise ConfigError(f"property {name!r} must not be negative")
    limit = LONG_MAX if name in LONG_PROPERTIES else INT_MAX
    if number > limit:
        raise ConfigError(f"property {name!r} must be at most {limit}, not {shown(value)}")
    return number


def _boolean(name: str, value: Any) -> bool:
    text = str(value).lower()
    if text in {"true", "1", "yes", "on"}:
        return True
    if text in {"false", "0", "no", "off"}:
        return False
    raise ConfigError(f"property {name!r} wants true or false, not {value!r}")


def parse_acks(name: str, value: Any) -> int:
    """Return -1, 0 or 1 from a number or from "all"."""
    acks = {"all": -1, "-1": -1, "0": 0, "1": 1}.get(str(value).lower())
    if acks is None:
        raise ConfigError(f"property {name!r} is one of all, 1, 0, not {value!r}")
    return acks


def _tags(_name: str, value: Any) -> TagFilter | None:
    if value is None or isinstance(value, TagFilter):
        return value
    return TagFilter.of(value)


def _one_of(choices: Mapping[str, str]) -> Callable[[str, Any], str]:
    def parse(name: str, value: Any) -> str:
        chosen = choices.get(str(value).lower())
        if chosen is None:
            raise ConfigError(f"property {name!r} is one of {', '.join(choices)}, not {value!r}")
        return chosen

    return parse


_SPECIAL: Final[dict[str, Callable[[str, Any], Any]]] = {
    "acks": parse_acks,
    "compression_type": _one_of({name: name for name in ("none", "gzip", "snappy", "lz4", "zstd")}),
    "auto_offset_reset": _one_of(OFFSET_RESETS),
    "group_protocol": _one_of({name: name for name in ("classic", "consumer", "auto")}),
    "isolation_level": _one_of({name: name for name in ("read_uncommitted", "read_committed")}),
    "tags": _tags,
    "security_protocol": parse_protocol,
    "sasl_mechanism": parse_mechanism,
    "ssl_endpoint_identification_algorithm": parse_identification,
    "oauth_cb": parse_callback,
    "sasl_oauthbearer_token": parse_callback,
}


def _check(config: ClientConfig) -> None:
    parse_bootstrap(config.bootstrap_servers)
    check_security(config)
    if not isinstance(config, ProducerConfig):
        return
    in_flight = config.max_in_flight_requests_per_connection
    if in_flight < 1:
        raise ConfigError("max.in.flight.requests.per.connection must be at least 1")
    if config.enable_idempotence and in_flight > 5:
        raise ConfigError(
            "an idempotent producer has at most 5 requests in flight: lower "
            "max.in.flight.requests.per.connection or set enable.idempotence=false"
        )
    if config.enable_idempotence and config.acks != -1:
        raise ConfigError("an idempotent producer needs acks=all; set enable.idempotence=false")
    if config.transactional_id == "":
        raise ConfigError("transactional.id is a name, not the empty text; leave it out for none")
    if config.transactional_id is not None and not config.enable_idempotence:
        raise ConfigError("transactions need enable.idempotence=true and acks=all")
    if config.transaction_timeout_ms < 1:
        raise ConfigError("transaction.timeout.ms must be at least 1")


def settle_group_protocol(protocol: str, given: Container[str]) -> str:
    """Return the group protocol that is meant; what it leaves to the other side is refused, as by Kafka's client.

    Raises:
        ConfigError: One of the attributes that are given means nothing under this protocol.
    """
    if protocol == "auto" and "group_remote_assignor" in given:
        protocol = "consumer"
    if protocol == "auto" and any(name in given for name in AUTO_IS_CLASSIC):
        protocol = "classic"
    if protocol == "consumer":
        for attribute, where in DECIDED_BY_THE_COORDINATOR.items():
            if attribute in given:
                name = attribute.replace("_", ".")
                raise ConfigError(
                    f"{name!r} cannot be set with group.protocol=consumer: {where}; leave it out, or set "
                    "group.protocol=classic"
                )
    elif "group_remote_assignor" in given:
        raise ConfigError(
            "'group.remote.assignor' cannot be set with group.protocol=classic, under which members divide partitions "
            "among themselves: name assignors by partition.assignment.strategy, or set group.protocol=consumer"
        )
    return protocol


def parse_bootstrap(text: str) -> list[tuple[str, int]]:
    """Return the addresses of `HOST:PORT,HOST:PORT`; the port defaults to 9092, IPv6 stands in brackets.

    Raises:
        ConfigError: An entry is not an address.
    """
    addresses = []
    for entry in filter(None, (part.strip() for part in text.split(","))):
        address = entry.rpartition("://")[2]  # PLAINTEXT://host:port is what server.properties has
        host, colon, port = address.rpartition(":")
        if not colon or address.endswith("]"):
            host, port = address, "9092"
        host = host.removeprefix("[").removesuffix("]")
        if (
            not host
            or not host.isprintable()
            or " " in host
            or not port.isdecimal()
            or not 0 < int(port) < 65536
        ):
            raise ConfigError(f"{entry!r} is not HOST:PORT")
        addresses.append((host, int(port)))
    if not addresses:
        raise ConfigError("no bootstrap server is given")
    return addresses
