"""The options of a read of Kinesis streams."""

from __future__ import annotations

import difflib
import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from headrace.core.lease.checkpoint import Checkpoint, at_timestamp, parse_checkpoint
from headrace.errors import ConfigError
from headrace.kinesis.client.settings import AwsSettings
from headrace.kinesis.client.streams import stream_name
from headrace.kinesis.reading.settings import ReadSettings
from headrace.spark.decode.options import DecodeOptions
from headrace.spark.options.declared import option_names
from headrace.spark.options.decode import DECODE_OPTIONS, decode_options
from headrace.spark.options.reader import OptionReader

log = logging.getLogger(__name__)

NAME: Final = "headrace-kinesis"
AWS_OPTIONS: Final = (
    "stream",
    "region",
    "endpointUrl",
    "profile",
    "accessKeyId",
    "secretAccessKey",
    "sessionToken",
)
STREAM_OPTIONS: Final = (
    "store",
    "maxRecordsPerShard",
    "maxBytesPerShard",
    "maxBytesPerTrigger",
    "pollInterval",
)
"""The options that only streams use. A batch read ignores them with a warning."""
READ_OPTIONS: Final = (
    *AWS_OPTIONS,
    "startingPosition",
    "endingTimestamp",
    *STREAM_OPTIONS,
    "maxTasks",
    "groupsSharing",
    "deaggregate",
    "failOnDataLoss",
    "columns",
    *option_names(DECODE_OPTIONS),
)
COLUMNS: Final = (
    "partitionKey",
    "data",
    "stream",
    "shardId",
    "sequenceNumber",
    "subSequenceNumber",
    "approximateArrivalTimestamp",
    "explicitHashKey",
)
DEFAULT_COLUMNS: Final = COLUMNS[:-1]
SHARD_BYTES: Final = 64 << 20
_NO_SHARDS: Final = (
    'option startingPosition must be JSON as {{"shardId-000000000000": "AFTER:4956..."}}: {}'
)
STORES: Final = "dynamodb://TABLE, or sqlite:///PATH for Spark on one machine"


@dataclass(frozen=True)
class Starting:
    """The start of a query without checkpoint."""

    latest: bool = False
    everywhere: Checkpoint | None = None
    """The position of all shards; None uses `shards`, and TRIM_HORIZON for other shards."""
    shards: tuple[tuple[str, Checkpoint], ...] = ()


@dataclass(frozen=True)
class ReadOptions:
    """The parsed options of a read."""

    aws: AwsSettings
    streams: Mapping[str, Starting]
    """The start of each stream, by the name or ARN in the option `stream`."""
    store: str | None = None
    """The address of the store for the ends of rounds; None if it is not given, which only batch reads allow."""
    ending_ms: int | None = None
    """The end of a batch read in milliseconds since 1970; None is the time of planning."""
    max_records_per_shard: int | None = None
    max_bytes_per_shard: int = SHARD_BYTES
    max_bytes_per_trigger: int | None = None
    max_tasks: int | None = None
    fail_on_data_loss: bool = True
    columns: tuple[str, ...] = DEFAULT_COLUMNS
    decode: DecodeOptions | None = None
    reading: ReadSettings = field(default_factory=ReadSettings)


class KinesisOptionReader(OptionReader):
    """Typed access to the options of `format("headrace-kinesis")`."""

    def __post_init__(self) -> None:
        """Reject unknown options, and options of CREATE TABLE."""
        canonical = {name.lower(): name for name in self.known}
        self._values = {}
        for name, value in self.options.items():
            if name.lower() == "provider":
                raise ConfigError(
                    "Spark drops the options of CREATE TABLE before a table is read: make it a view, "
                    f"CREATE TEMPORARY VIEW ... USING `{NAME}` OPTIONS (...)"
                )
            if name.lower() not in canonical:
                raise ConfigError(_unknown(name, canonical))
            self._values[canonical[name.lower()]] = value

    def streams(self) -> dict[str, str]:
        """Parse the streams: names or ARNs as given, by stream name."""
        given = self.names("stream")
        if not given:
            raise ConfigError(
                "option stream is missing: give the stream's name, or its ARN, or several with commas between"
            )
        streams = {stream_name(each): each for each in given}
        if len(streams) < len(given):
            raise ConfigError(
                f"option stream={self.text('stream')} has two streams of the same name: read one of them with "
                "another query"
            )
        return streams

    def aws(self) -> AwsSettings:
        """Parse the AWS endpoint, region and credentials."""
        given = {name: self.text(name) or None for name in AWS_OPTIONS}
        endpoint = given["endpointUrl"]
        if endpoint is not None and not endpoint.startswith(("http://", "https://")):
            raise ConfigError(
                f"option endpointUrl must begin with http:// or https://, not {endpoint!r}"
            )
        if (given["accessKeyId"] is None) != (given["secretAccessKey"] is None):
            raise ConfigError(
                "options accessKeyId and secretAccessKey go together: one of them is missing"
            )
        if given["sessionToken"] is not None and given["accessKeyId"] is None:
            raise ConfigError(
                "option sessionToken belongs to accessKeyId and secretAccessKey: give all three"
            )
        return AwsSettings(
            region=given["region"],
            endpoint_url=endpoint,
            profile=given["profile"],
            access_key_id=given["accessKeyId"],
            secret_access_key=given["secretAccessKey"],
            session_token=given["sessionToken"],
        )


def read_options(options: Mapping[str, str], *, streaming: bool | None) -> ReadOptions:
    """Parse and check the options of a read.

    Args:
        options: Values by option name; case does not matter.
        streaming: Whether the read is a stream; None if that is not known yet.

    Raises:
        ConfigError: An option is unknown, missing, contradicts another option or has a wrong value.
    """
    reader = KinesisOptionReader(options, READ_OPTIONS)
    if streaming is False:
        for option in STREAM_OPTIONS:
            if reader.text(option) is not None:
                log.warning("option %s has no effect in a batch read", option)
    max_bytes = reader.size("maxBytesPerShard") or SHARD_BYTES
    return ReadOptions(
        aws=reader.aws(),
        streams=_starting(reader, streaming=streaming),
        store=_store(reader.text("store"), streaming=streaming),
        ending_ms=_ending(reader.text("endingTimestamp"), streaming=streaming),
        max_records_per_shard=reader.number("maxRecordsPerShard", None),
        max_bytes_per_shard=max_bytes,
        max_bytes_per_trigger=reader.size("maxBytesPerTrigger"),
        max_tasks=reader.number("maxTasks", None),
        fail_on_data_loss=reader.flag("failOnDataLoss", default=True),
        columns=_columns(reader),
        decode=_decode(reader),
        reading=_reading(reader),
    )


def _store(text: str | None, *, streaming: bool | None) -> str | None:
    if not text:
        if streaming:
            raise ConfigError(
                f"option store is missing: a stream stores there how far its tasks have read; give {STORES}"
            )
        return None
    scheme = text.partition(":")[0].lower()
    if scheme == "memory":
        raise ConfigError(
            f"option store={text}: Spark's tasks run in several processes, which do not share memory; give {STORES}"
        )
    if scheme not in {"dynamodb", "sqlite"}:
        raise ConfigError(f"option store={text!r} names no store: give {STORES}")
    if scheme == "sqlite":
        path = Path(text.partition("://")[2].removeprefix("/")).expanduser()
        return f"sqlite:///{path.absolute()}"
    return text


def _starting(reader: KinesisOptionReader, *, streaming: bool | None) -> dict[str, Starting]:
    streams = reader.streams()
    given = reader.text("startingPosition") or ("latest" if streaming else "earliest")
    if not given.startswith("{"):
        return dict.fromkeys(streams.values(), _position(given, streaming=streaming))
    positions = _parsed(given)
    if positions.keys() == streams.keys():
        return {
            streams[name]: _position(each, streaming=streaming)
            if isinstance(each, str)
            else _shards(each)
            for name, each in positions.items()
        }
    if len(streams) > 1:
        raise ConfigError(
            f"option startingPosition must name the start of each of {', '.join(streams)}, as "
            f'{{"{next(iter(streams))}": "earliest", ...}}, but names {", ".join(positions) or "none"}'
        )
    return dict.fromkeys(streams.values(), _shards(positions))


def _position(given: str, *, streaming: bool | None) -> Starting:
    match given.lower():
        case "latest" if streaming is not False:
            return Starting(latest=True)
        case "latest":
            raise ConfigError("option startingPosition latest is for streams: a batch ends there")
        case "earliest" | "trim_horizon":
            return Starting()
        case _:
            return Starting(everywhere=at_timestamp(_timestamp_ms("startingPosition", given)))


def _parsed(text: str) -> dict[str, Any]:
    try:
        return dict(json.loads(text))
    except ValueError as error:
        raise ConfigError(_NO_SHARDS.format(error)) from None


def _shards(given: Any) -> Starting:
    try:
        return Starting(
            shards=tuple(
                (shard, parse_checkpoint(position.removeprefix("AFTER:")))
                for shard, position in sorted(given.items())
            )
        )
    except (AttributeError, ConfigError) as error:
        raise ConfigError(_NO_SHARDS.format(error)) from None


def _timestamp_ms(option: str, text: str) -> int:
    digits = text.removeprefix("AT_TIMESTAMP:")
    if digits.isascii() and digits.isdecimal():
        return int(digits)
    try:
        when = datetime.fromisoformat(text)
    except ValueError:
        raise ConfigError(
            f"option {option} must be a time, in milliseconds since 1970 or as 2026-01-31T12:00:00Z"
            f"{', or earliest, latest or JSON of shards' if option == 'startingPosition' else ''}, not {text!r}"
        ) from None
    if when.tzinfo is None:
        raise ConfigError(f"option {option}={text} has no time zone: append Z, or one as +01:00")
    return int(when.astimezone(UTC).timestamp() * 1000)


def _ending(text: str | None, *, streaming: bool | None) -> int | None:
    if not text:
        return None
    if streaming:
        raise ConfigError("option endingTimestamp is for batch reads: a stream does not end")
    return _timestamp_ms("endingTimestamp", text)


def _columns(reader: OptionReader) -> tuple[str, ...]:
    given = reader.names("columns")
    if given is None:
        return DEFAULT_COLUMNS
    canonical = {name.lower(): name for name in COLUMNS}
    unknown = [name for name in given if name.lower() not in canonical]
    if unknown or not given:
        raise ConfigError(
            f"option columns must name some of {', '.join(COLUMNS)}, not {', '.join(unknown) or 'none'}"
        )
    return tuple(dict.fromkeys(canonical[name.lower()] for name in given))


def _decode(reader: OptionReader) -> DecodeOptions | None:
    decode = decode_options(reader, "data")
    if decode is not None and decode.on_error == "dlq":
        raise ConfigError(
            "option onError must be fail or null here: with null, the query can write the rows with _error to a place "
            "of its own"
        )
    return decode


def _reading(reader: OptionReader) -> ReadSettings:
    poll_ms = reader.duration_ms("pollInterval", 1_000)
    if not 200 <= poll_ms <= 5_000:
        raise ConfigError(f"option pollInterval must be 200ms to 5s, not {poll_ms} ms")
    sharing = reader.number("groupsSharing", 1)
    assert sharing is not None
    if sharing > 20:
        raise ConfigError(f"option groupsSharing must be 1 to 20, not {sharing}")
    return ReadSettings(
        poll_ms=poll_ms,
        groups_sharing=sharing,
        deaggregate=reader.flag("deaggregate", default=True),
    )


def _unknown(name: str, canonical: Mapping[str, str]) -> str:
    near = difflib.get_close_matches(name.lower(), canonical, n=1)
    if near:
        return f"unknown option {name}: did you mean {canonical[near[0]]}?"
    return f"unknown option {name}: known are {', '.join(sorted(canonical.values()))}"
