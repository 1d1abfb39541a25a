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
    ClientSecurityConfig,
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
"""Numbers of 64 bits, as in Kafka's client. All others have 32 bits, because the protocol sends some of them so."""

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
"""Other names of properties, with the names that are used here: librdkafka's names, and all names for security."""

DECIDED_BY_THE_COORDINATOR: Final = {
    "session_timeout_ms": "the broker's group.consumer.session.timeout.ms decides",
    "heartbeat_interval_ms": "the broker's group.consumer.heartbeat.interval.ms decides",
    "partition_assignment_strategy": "the coordinator divides partitions, by group.remote.assignor",
}
"""Properties that only the group protocol `classic` uses, each with what decides under the protocol `consumer`."""

AUTO_IS_CLASSIC: Final = (*DECIDED_BY_THE_COORDINATOR, "group_instance_id")
"""Properties with which `group.protocol=auto` means `classic`. `group.instance.id` is one of them: under `classic` a
static member that was killed continues at once after its restart; under `consumer` it waits until its old session has
expired."""

_OF_OTHER_CLIENTS: Final = {
    f"{what}.{which}": f"give {name}=, a name such as 'json', a type or a serde, which both writes and reads"
    for what, name in (("value", "serde"), ("key", "key_serde"))
    for which in ("serializer", "deserializer")
}
"""Properties of other clients that have no meaning here, each with what to use in its place."""

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
class ClientConfig(ClientSecurityConfig):
    """Settings of every client."""

    bootstrap_servers: str = "127.0.0.1:9092"
    """Addresses of brokers, HOST:PORT separated by commas. One broker that answers is enough to find the others."""
    client_id: str = "headrace"
    """The name of the client in requests, in the broker's log and in quotas."""
    request_timeout_ms: int = 30_000
    """Milliseconds that an operation may take, including retries and backoff, before it fails."""
    socket_connection_setup_timeout_ms: int = 10_000
    """Milliseconds that opening a connection may take, including TLS, handshake and login."""
    retry_backoff_ms: int = 100
    """Milliseconds before the first retry. The backoff doubles with each further retry."""
    retry_backoff_max_ms: int = 1_000
    """The longest backoff before a retry, in milliseconds."""
    metadata_max_age_ms: int = 300_000
    """Milliseconds after which metadata of topics is asked for again, even if nothing failed."""
    receive_message_max_bytes: int = 128 << 20
    """The largest response in bytes. The client closes a connection on which a broker announces a larger one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerConfig(ClientConfig):
    """Settings of a producer."""

    acks: int = -1
    """Replicas that must store a record before it is acknowledged: -1 (all in sync), 1 (the leader), 0 (none), or a
    higher number of in-sync replicas, the leader included. Only Headrace has numbers above 1."""
    compression_type: str = "none"
    """The codec that compresses batches."""
    linger_ms: int = 5
    """Milliseconds that a batch which is not full waits for more records."""
    batch_size: int = 64 << 10
    """The size in bytes, before compression, at which a batch is full and is sent."""
    enable_idempotence: bool = True
    """Whether the broker discards a batch that a retry sends again. Needs acks=all and at most 5 requests in flight."""
    max_in_flight_requests_per_connection: int = 5
    """Produce requests that may be in flight to one broker."""
    retries: int = 2**31 - 1
    """The number of retries of a batch before its records fail. `delivery.timeout.ms` limits retries, too."""
    delivery_timeout_ms: int = 120_000
    """Milliseconds after which records that are not acknowledged fail, counted from the first record of their batch."""
    buffer_memory: int = 32 << 20
    """Bytes of batches that may wait for delivery. When more wait, `send` blocks."""
    max_block_ms: int = 60_000
    """Milliseconds that `send` may wait for metadata or for space in the buffer, and transaction calls for a broker."""
    max_request_size: int = 1 << 20
    """The largest request in bytes, and so the largest record."""
    recreate_topics: bool = True
    """Whether the broker may create a topic again that was deleted while the producer was writing to it."""
    transactional_id: str | None = None
    """The producer's name for transactions, the same after a restart. A new producer with the name fences the previous
    one. None is a producer without transactions."""
    transaction_timeout_ms: int = 60_000
    """Milliseconds that a transaction may be open. Then its coordinator aborts it, and the producer is fenced."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerConfig(ClientConfig):
    """Settings of a consumer."""

    group_id: str | None = None
    """The consumer group. None is a consumer without a group, which can neither subscribe nor commit."""
    group_instance_id: str | None = None
    """The name of a static member, which may restart without a rebalance. None is a dynamic member."""
    group_protocol: str = "auto"
    """The side that assigns partitions. classic: the members; consumer: the coordinator (KIP-848); auto: `consumer` if
    the broker offers it and no property is set that needs `classic`."""
    group_remote_assignor: str = ""
    """The coordinator's assignor, for the group protocol `consumer`. "" lets the coordinator choose."""
    auto_offset_reset: str = "latest"
    """The position without a committed offset, or if its record does not exist: earliest, latest, none (an error)."""
    enable_auto_commit: bool = True
    """Whether the consumer commits finished records by itself. It has no effect without a group."""
    auto_commit_interval_ms: int = 5_000
    """Milliseconds between automatic commits."""
    session_timeout_ms: int = 45_000
    """Milliseconds without a heartbeat after which a member is removed. Group protocol `classic` only."""
    heartbeat_interval_ms: int = 3_000
    """Milliseconds between heartbeats, at most a third of the session; group protocol `classic` only."""
    max_poll_interval_ms: int = 300_000
    """Milliseconds between two polls after which the member leaves its group, because the program seems to hang."""
    max_poll_records: int = 500
    """The largest number of records that one poll returns."""
    fetch_min_bytes: int = 1
    """Bytes of records for which a broker waits before it answers a fetch, at most `fetch.max.wait.ms`."""
    fetch_max_bytes: int = 50 << 20
    """Bytes of records after which a broker ends its response to a fetch. One batch is returned in any case."""
    max_partition_fetch_bytes: int = 1 << 20
    """Bytes of records after which a broker ends its response for one partition."""
    fetch_max_wait_ms: int = 500
    """Milliseconds that a broker may wait for `fetch.min.bytes` of records."""
    isolation_level: str = "read_uncommitted"
    """read_committed returns records of committed transactions only; read_uncommitted returns all records."""
    tags: TagFilter | None = None
    """Return only records that have any of these tags. None returns all records."""
    check_crcs: bool = True
    """Whether the checksum of each batch is checked."""
    allow_auto_create_topics: bool = False
    """Whether the broker may create the topics that the consumer subscribes to, if the broker creates topics."""
    partition_assignment_strategy: str = ""
    """Names of assignors, preferred first, separated by commas; group protocol `classic` only. "" is the assignor that
    an administrator has chosen for the group, or range."""
    client_rack: str = ""
    """The rack of the consumer, for assignors that use racks. "" is none."""


def parse_config(config_class: type[C], properties: Mapping[str, Any], **defaults: Any) -> C:
    """Build a configuration from properties.

    Args:
        config_class: The class of the configuration.
        properties: Values by name, `request.timeout.ms` or `request_timeout_ms`. Text is parsed. They override
            `defaults`.
        defaults: Values by attribute name. None counts as not given.

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
            continue  # for example an environment variable that is not set: the property counts as not given
        values[attribute] = _parse(dotted, attribute, kind, value)
    if issubclass(config_class, ProducerConfig) and "enable_idempotence" not in values:
        # As in Kafka's client: settings that exclude idempotence switch it off, unless the program has asked for it.
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
    """Check that the names of properties are known. Their values are parsed later.

    Raises:
        ConfigError: A name is unknown.
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
    if not isinstance(value, str | int | float):  # numbers and booleans are turned into text
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


MAX_ACKS: Final = 2**15 - 1
"""The greatest number that a Produce request can have as `acks`."""


def parse_acks(name: str, value: Any) -> int:
    """Return -1 from "all", and otherwise a number of replicas."""
    text = str(value).lower()
    if text in {"all", "-1"}:
        return -1
    if not (text.isascii() and text.isdigit() and len(text) <= 5 and int(text) <= MAX_ACKS):
        raise ConfigError(
            f"property {name!r} is all or a number of replicas up to {MAX_ACKS}, not {value!r}"
        )
    return int(text)


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
    """Return the group protocol to use, as Kafka's client chooses it.

    Args:
        protocol: `group.protocol`.
        given: The attributes that the program has set.

    Raises:
        ConfigError: An attribute is set that has no meaning under this protocol.
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
    """Return the addresses of `HOST:PORT,HOST:PORT`. The port defaults to 9092. An IPv6 address stands in brackets.

    Raises:
        ConfigError: An entry is not an address.
    """
    addresses = []
    for entry in filter(None, (part.strip() for part in text.split(","))):
        address = entry.rpartition("://")[2]  # server.properties has PLAINTEXT://host:port
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
