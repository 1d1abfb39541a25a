"""The options of a write, checked before anything runs."""

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
"""What the names of transactions and groups begin with, unless `kafka.transactional.id` says it."""
_DELIVERIES: Final = ("exactly_once", "at_least_once")
_DEFAULTS: Final[Mapping[str, str]] = {
    "client.id": "headrace-spark",
    # A task sends as fast as it can and waits at its end: large batches cost it nothing.
    "batch.size": str(256 << 10),
    "linger.ms": "20",
    # As long as brokers allow by default: a transaction is open until the whole batch of Spark's is written.
    "transaction.timeout.ms": "900000",
}
_ALWAYS: Final[Mapping[str, tuple[str, ...]]] = {
    "acks": ("all", "-1"),
    "request.required.acks": ("all", "-1"),
    "enable.idempotence": ("true",),
}


@dataclass(frozen=True)
class Once:
    """What makes a write exactly once: whose it is, and which of its writes."""

    name: str
    """What the names of its transactions and groups begin with."""
    version: int
    """Spark's number of the batch, or `txnVersion`."""

    @property
    def claim(self) -> str:
        """The name of the driver's transactions, and of the group with the claim."""
        return f"{self.name}-claim"  # no other's partition is called so, whatever either was named

    def part(self, partition: int) -> str:
        """Return the name of a partition's transactions, and of the group with its marker."""
        return f"{self.name}-{partition}"


@dataclass(frozen=True)
class SinkOptions:
    """What a write was asked for."""

    client: ClientOptions
    topic: str | None = None
    exactly_once: bool = False
    transaction: Once | None = None
    """Of a batch write that is exactly once; a stream's follow from query and batch."""
    name: str = NAME
    marker_topic: str = MARKER_TOPIC
    claim_topic: str = CLAIM_TOPIC
    fail_on_lost_marker: bool = True


def sink_options(options: Mapping[str, str], *, streaming: bool) -> SinkOptions:
    """Check the options of a write.

    Raises:
        ConfigError: As for `source_options`.
    """
    reader = OptionReader(_of_the_sink(options), (*option_names(SINK_OPTIONS), "kafka.group.id"))
    reader.flag("includeHeaders", default=True)  # a column headers is written whenever it is there
    client = reader.client()
    properties = dict(client.properties)
    name = properties.pop("transactional.id", None)
    _check_always(properties)
    transaction = _transaction(reader, name or NAME, streaming=streaming)
    exactly_once = _exactly_once(reader, transaction, streaming=streaming)
    if name is not None and not exactly_once:
        raise ConfigError(
            "option kafka.transactional.id is what transactions' names begin with, and there are none with "
            "delivery=at_least_once: leave one of the two out"
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
    """Return the properties of the producer that the `kafka.*` options of a write make."""
    return {**_DEFAULTS, **dict(options.properties)}


def producer_config(options: ClientOptions) -> ProducerConfig:
    """Return the configuration that the `kafka.*` options of a write make.

    Raises:
        ConfigError: One of them is unknown or malformed.
    """
    try:
        return parse_config(
            ProducerConfig, producer_properties(options), bootstrap_servers=options.bootstrap
        )
    except ConfigError as error:
        raise ConfigError(f"kafka.* options: {error}") from None


def _of_the_sink(options: Mapping[str, str]) -> dict[str, str]:
    """Leave out what Spark's writer of streams keeps for itself among the options."""
    own = {"checkpointlocation", "queryname", "path"}
    return {name: value for name, value in options.items() if name.lower() not in own}


def _check_always(properties: Mapping[str, str]) -> None:
    for name, right in _ALWAYS.items():
        value = properties.get(name)
        if value is not None and value.lower() not in right:
            raise ConfigError(
                f"option kafka.{name} cannot be {value!r}: what Spark writes is always acknowledged by all replicas "
                "and idempotent; leave it out"
            )


def _transaction(reader: OptionReader, name: str, *, streaming: bool) -> Once | None:
    app, version = reader.text("txnAppId"), reader.text("txnVersion")
    if app is None and version is None:
        return None
    if streaming:
        raise ConfigError(
            "options txnAppId and txnVersion are for batch writes; a stream's writes are known by its checkpoint"
        )
    if not app or version is None:
        raise ConfigError(
            "options txnAppId and txnVersion are given together: who writes, and a number that grows with each write"
        )
    if not (version.isascii() and version.isdigit()) or int(version) >= 2**62:
        raise ConfigError(f"option txnVersion must be a whole number from 0 on, not {version!r}")
    # With the topic, for one batch may go to several; no topic has an @ in its name.
    return Once(f"{name}-{app}@{reader.text('topic') or ''}", int(version))


def _exactly_once(reader: OptionReader, transaction: Once | None, *, streaming: bool) -> bool:
    given = reader.text("delivery")
    if given is None:
        return streaming or transaction is not None
    if given.lower() not in _DELIVERIES:
        raise ConfigError(f"option delivery is one of {', '.join(_DELIVERIES)}, not {given!r}")
    exactly_once = given.lower() == "exactly_once"
    if exactly_once and not streaming and transaction is None:
        raise ConfigError(
            "option delivery=exactly_once of a batch write needs txnAppId and txnVersion: by them a write that is "
            "repeated is known"
        )
    if transaction is not None and not exactly_once:
        raise ConfigError(
            "options txnAppId and txnVersion make a write exactly once: leave them or delivery out"
        )
    return exactly_once
