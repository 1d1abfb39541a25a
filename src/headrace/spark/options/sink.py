"""The options of a write of topics."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from headrace.clients.config import ProducerConfig, parse_config
from headrace.errors import ConfigError
from headrace.spark.options.declared import Option, option_names
from headrace.spark.options.reader import ClientOptions, OptionReader

MARKER_TOPIC: Final = "headrace-spark-markers"
CLAIM_TOPIC: Final = "headrace-spark-claims"
SINK_OPTIONS: Final = (
    Option(
        "topic",
        "The topic of all rows. Without this option each row names its topic in a column `topic`.",
    ),
    Option(
        "delivery",
        "`exactly_once` or `at_least_once`. A batch write is exactly once if it has `txnAppId` and `txnVersion`.",
        default="at_least_once",
        stream_default="exactly_once",
    ),
    Option(
        "txnAppId",
        "The name of the writing application. With `txnVersion` the write is exactly once.",
        only_for="batch",
    ),
    Option("txnVersion", "A number that grows with each write of `txnAppId`.", only_for="batch"),
    Option(
        "markerTopic",
        "The topic under whose name an exactly-once write commits its markers.",
        default=MARKER_TOPIC,
    ),
    Option(
        "claimTopic",
        "The compacted topic with the claims of exactly-once writes.",
        default=CLAIM_TOPIC,
    ),
    Option(
        "failOnLostMarker",
        "Whether a query fails that does not find its markers.",
        only_for="stream",
        default="true",
    ),
    Option(
        "includeHeaders",
        "Accepted without effect: a column `headers` is always written.",
        default="true",
    ),
)
NAME: Final = "headrace-spark"
"""The prefix of the names of transactions and groups, unless `kafka.transactional.id` is given."""
_DELIVERIES: Final = ("exactly_once", "at_least_once")
_DEFAULTS: Final[Mapping[str, str]] = {
    "client.id": "headrace-spark",
    # A task sends as fast as possible and waits only at its end: large batches cause no delay.
    "batch.size": str(256 << 10),
    "linger.ms": "20",
    # The longest time that brokers allow by default: a transaction is open until Spark's whole batch is written.
    "transaction.timeout.ms": "900000",
}
_ALWAYS: Final[Mapping[str, tuple[str, ...]]] = {
    "acks": ("all", "-1"),
    "request.required.acks": ("all", "-1"),
    "enable.idempotence": ("true",),
}


@dataclass(frozen=True)
class WriteId:
    """The identification of an exactly-once write: its writer, and the number of the write."""

    name: str
    """The prefix of the names of the writer's transactions and groups."""
    version: int
    """The number of the write: Spark's batch id, or `txnVersion`."""

    @property
    def claim(self) -> str:
        """The transactional id of the driver, which is also the group with the claim."""
        return (
            f"{self.name}-claim"  # partition names end with a number, so no partition has this name
        )

    def part(self, partition: int) -> str:
        """Return the transactional id for a partition, which is also the group with its marker."""
        return f"{self.name}-{partition}"


@dataclass(frozen=True)
class SinkOptions:
    """The parsed options of a write."""

    client: ClientOptions
    topic: str | None = None
    exactly_once: bool = False
    transaction: WriteId | None = None
    """The identification of an exactly-once batch write. None otherwise: streams derive it from query and batch."""
    name: str = NAME
    marker_topic: str = MARKER_TOPIC
    claim_topic: str = CLAIM_TOPIC
    fail_on_lost_marker: bool = True


def sink_options(options: Mapping[str, str], *, streaming: bool) -> SinkOptions:
    """Parse and check the options of a write.

    Raises:
        ConfigError: An option is unknown, missing, contradicts another option or has a wrong value.
    """
    reader = OptionReader(_of_the_sink(options), (*option_names(SINK_OPTIONS), "kafka.group.id"))
    reader.flag(
        "includeHeaders", default=True
    )  # checked only: a column `headers` is always written
    client = reader.client()
    properties = dict(client.properties)
    name = properties.pop("transactional.id", None)
    _check_always(properties)
    transaction = _transaction(reader, name or NAME, streaming=streaming)
    exactly_once = _exactly_once(reader, transaction, streaming=streaming)
    if name is not None and not exactly_once:
        raise ConfigError(
            "option kafka.transactional.id is the prefix of the transactions' names, and delivery=at_least_once uses "
            "no transactions: leave one of the two out"
        )
    options_ = SinkOptions(
        client=replace(client, properties=tuple(sorted(properties.items()))),
        topic=reader.text("topic") or None,
        exactly_once=exactly_once,
        transaction=transaction,
        name=name or NAME,
        marker_topic=reader.text("markerTopic") or MARKER_TOPIC,
        claim_topic=reader.text("claimTopic") or CLAIM_TOPIC,
        fail_on_lost_marker=reader.flag("failOnLostMarker", default=True),
    )
    producer_config(options_.client)  # for its checks
    return options_


def producer_properties(options: ClientOptions) -> dict[str, Any]:
    """Return the producer's properties: the sink's defaults and the `kafka.*` options."""
    return {**_DEFAULTS, **dict(options.properties)}


def producer_config(options: ClientOptions) -> ProducerConfig:
    """Parse the `kafka.*` options of a write.

    Raises:
        ConfigError: An option is unknown or malformed.
    """
    try:
        return parse_config(
            ProducerConfig, producer_properties(options), bootstrap_servers=options.bootstrap
        )
    except ConfigError as error:
        raise ConfigError(f"kafka.* options: {error}") from None


def _of_the_sink(options: Mapping[str, str]) -> dict[str, str]:
    """Remove the options of Spark's own stream writer, which Spark passes along."""
    own = {"checkpointlocation", "queryname", "path"}
    return {name: value for name, value in options.items() if name.lower() not in own}


def _check_always(properties: Mapping[str, str]) -> None:
    for name, right in _ALWAYS.items():
        value = properties.get(name)
        if value is not None and value.lower() not in right:
            raise ConfigError(
                f"option kafka.{name} cannot be {value!r}: writes from Spark are always acknowledged by all replicas "
                "and idempotent. Leave the option out"
            )


def _transaction(reader: OptionReader, name: str, *, streaming: bool) -> WriteId | None:
    app, version = reader.text("txnAppId"), reader.text("txnVersion")
    if app is None and version is None:
        return None
    if streaming:
        raise ConfigError(
            "options txnAppId and txnVersion are for batch writes; the checkpoint identifies a stream's writes"
        )
    if not app or version is None:
        raise ConfigError(
            "options txnAppId and txnVersion are given together: the writer's name, and a number that grows with each "
            "write"
        )
    if not (version.isascii() and version.isdigit()) or int(version) >= 2**62:
        raise ConfigError(f"option txnVersion must be a whole number from 0 on, not {version!r}")
    # The name contains the topic, because an application may write one batch to several topics. No topic name has an @.
    return WriteId(f"{name}-{app}@{reader.text('topic') or ''}", int(version))


def _exactly_once(reader: OptionReader, transaction: WriteId | None, *, streaming: bool) -> bool:
    given = reader.text("delivery")
    if given is None:
        return streaming or transaction is not None
    if given.lower() not in _DELIVERIES:
        raise ConfigError(f"option delivery is one of {', '.join(_DELIVERIES)}, not {given!r}")
    exactly_once = given.lower() == "exactly_once"
    if exactly_once and not streaming and transaction is None:
        raise ConfigError(
            "option delivery=exactly_once of a batch write needs txnAppId and txnVersion: they identify a repeated "
            "write"
        )
    if transaction is not None and not exactly_once:
        raise ConfigError(
            "options txnAppId and txnVersion make a write exactly once: leave them or delivery out"
        )
    return exactly_once
