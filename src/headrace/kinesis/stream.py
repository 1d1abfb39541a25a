"""`kinesis("orders")`: streams that a worker reads instead of topics."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from headrace.core.lease.checkpoint import TRIM_HORIZON, Checkpoint, at_timestamp, parse_checkpoint
from headrace.core.lease.settings import LeaseSettings
from headrace.errors import ConfigError
from headrace.kinesis.client.settings import AwsClient, AwsSettings
from headrace.kinesis.group.owners import process_owner
from headrace.kinesis.group.settings import StreamGroupSettings
from headrace.kinesis.reading.settings import ReadSettings

if TYPE_CHECKING:
    from headrace.kinesis.group.consumer import StreamConsumer
    from headrace.kinesis.group.dead_letter_stream import DeadLetterStream
    from headrace.kinesis.leases.store import LeaseStore

DEFAULT_LEASES: Final = "dynamodb://headrace-leases"
DEFAULT_LEASE_DURATION_MS: Final = 30_000
MIN_LEASE_DURATION_MS: Final = 1_000
LATEST: Final = "LATEST"
_LETTERS: Final = "kinesis://"
_AFTER: Final = "AFTER:"


@dataclass(frozen=True, slots=True, kw_only=True)
class Streams(StreamGroupSettings):
    """Streams that a worker reads instead of topics; the result of `kinesis`."""

    def check(self, *, delivery: str, dead_letter: bool | str) -> None:
        """Refuse options of a worker that streams do not have.

        Raises:
            ConfigError: Delivery is exactly once, or `dead_letter` is not the URL of a stream.
        """
        if isinstance(dead_letter, str) and "://" in dead_letter:
            _letters_stream(dead_letter)
        if delivery == "exactly_once":
            raise ConfigError(
                'delivery="exactly_once" is for topics: their brokers write results and positions in one transaction. '
                "Kinesis has no transactions. Use at_least_once. Store context.epoch with each result, and let your "
                "sink refuse results with a lower epoch. dedupe= skips records that are delivered twice"
            )

    def open_source(
        self, group: str, *, delivery: str, drain_timeout_s: float, client_id: str
    ) -> StreamConsumer:
        """Return a new member of a group.

        Args:
            group: The group's name.
            delivery: How records are delivered: "at_least_once" or "at_most_once".
            drain_timeout_s: The longest time in seconds that the worker needs to finish the records of a shard that it
                gives up.
            client_id: The client id of the app. It is part of the member's name if `owner` is not set.
        """
        from headrace.kinesis.group.consumer import StreamConsumer  # noqa: PLC0415 - loaded by workers only

        durable = delivery == "at_most_once"
        return StreamConsumer(
            self,
            group,
            durable=durable,
            drain_timeout_s=drain_timeout_s,
            owner=self.owner or process_owner(client_id),
        )

    def open_letters(self, place: str) -> DeadLetterStream:
        """Return the writer of dead letters to another stream."""
        from headrace.kinesis.group.dead_letter_stream import DeadLetterStream  # noqa: PLC0415 - loaded when used

        return DeadLetterStream(_letters_stream(place), self.aws)


def kinesis(
    *streams: str,
    region: str | None = None,
    endpoint_url: str | None = None,
    start: str | datetime = "TRIM_HORIZON",
    leases: str | LeaseStore = DEFAULT_LEASES,
    lease_duration_ms: int = DEFAULT_LEASE_DURATION_MS,
    scan_ms: int | None = None,
    max_shards: int | None = None,
    owner: str | None = None,
    fan_out: bool | str = False,
    aws: AwsSettings | None = None,
    clients: Mapping[str, AwsClient] | None = None,
    **options: Any,
) -> Streams:
    """Return the streams that `@app.worker` reads in place of topics.

        @app.worker(kinesis("orders", region="eu-central-1"), group="billing")

    Args:
        streams: Names or ARNs of streams.
        region: The AWS region, such as `eu-central-1`. None: the region of the machine's AWS configuration.
        endpoint_url: The URL of a server that replaces AWS, for streams and leases.
        start: The position at which a new group begins: "TRIM_HORIZON", the oldest record; "LATEST", records from now
            on, fixed when the group reads the stream for the first time; a datetime with a time zone; or
            "AFTER:<sequence number>". Shards of a later split or merge are always read from their first record.
        leases: The lease store, which contains the owner and the checkpoint of each shard: "dynamodb://TABLE",
            "sqlite:///FILE" (workers of one machine), "memory://NAME" (workers of one process), or a `LeaseStore`.
        lease_duration_ms: The time in milliseconds after which other workers take the shards of a silent worker.
        scan_ms: The time in milliseconds between two searches for free shards; None is a third of `lease_duration_ms`.
        max_shards: The most shards that a worker reads; None: no limit. Shards beyond the limits of some workers are
            divided among the others.
        owner: The name of this process in leases and in `headrace kinesis describe`, 1 to 128 bytes; None is `<client
            id of the app>@<host>:<process id>`. Two processes with the same name are still two members.
        fan_out: Whether to read by enhanced fan-out, with 2 MiB/s for this group alone. True registers a consumer with
            the group's name; a text is another name. AWS charges for fan-out.
        aws: Keys, profile, timeouts: all settings of `AwsSettings`.
        clients: Open clients of aiobotocore, by service: "kinesis", "dynamodb".
        options: Settings of reading by name, such as `poll_ms=200`, `groups_sharing=2` (see `ReadSettings`).

    Raises:
        ConfigError: An argument is not allowed, or contradicts another.
    """
    if aws is not None and (region or endpoint_url or clients):
        raise ConfigError("region=, endpoint_url= and clients= are in aws= already: leave them out")
    known = set(ReadSettings.__dataclass_fields__)
    if unknown := sorted(options.keys() - known):
        raise ConfigError(
            f"kinesis() has no argument {', '.join(unknown)}. The settings of reading are {', '.join(sorted(known))}"
        )
    return Streams(
        names=streams,
        aws=aws or AwsSettings(region=region, endpoint_url=endpoint_url, clients=clients or {}),
        start=_start(start),
        leases=leases,
        lease=_lease_settings(lease_duration_ms, scan_ms, max_shards),
        reading=ReadSettings(**options),
        fan_out=fan_out,
        owner=owner,
    )


def _letters_stream(place: str) -> str:
    stream = place.removeprefix(_LETTERS)
    if stream == place or not stream:
        raise ConfigError(
            f"dead_letter={place!r} is not allowed: use True, the name of a topic, or kinesis://STREAM"
        )
    return stream


def _start(start: str | datetime) -> Checkpoint | None:
    if isinstance(start, datetime):
        if start.tzinfo is None:
            raise ConfigError(
                f"start={start.isoformat()} has no time zone: pass datetime(..., tzinfo=UTC), for example"
            )
        return at_timestamp(round(start.timestamp() * 1000))
    if start == LATEST:
        return None
    if start == TRIM_HORIZON.position:
        return TRIM_HORIZON
    number = start.removeprefix(_AFTER)
    if number == start or not number.isdecimal():
        raise ConfigError(
            f'start={start!r} is not allowed: use "TRIM_HORIZON", "LATEST", a datetime or "AFTER:<sequence number>"'
        )
    return parse_checkpoint(number)


def _lease_settings(duration_ms: int, scan_ms: int | None, max_shards: int | None) -> LeaseSettings:
    if duration_ms < MIN_LEASE_DURATION_MS:
        raise ConfigError(
            f"lease_duration_ms={duration_ms} is not allowed: use {MIN_LEASE_DURATION_MS} or more. With less, a worker "
            "loses its shards after every slow answer of the lease store"
        )
    third_ms = duration_ms // 3
    return LeaseSettings(
        duration_ms=duration_ms,
        renew_ms=third_ms,
        margin_ms=duration_ms // 10,
        scan_ms=scan_ms or third_ms,
        max_shards=max_shards,
        call_timeout_ms=min(5_000, third_ms),
        checkpoint_ms=min(1_000, third_ms),
        retry_ms=min(1_000, duration_ms // 10),
    )
