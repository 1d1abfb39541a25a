"""The messages that `headrace.kinesis.consumer.Consumer` returns, and the loggers that programs pass to it."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, Self

from headrace.errors import ConfigError
from headrace.stream_record import StreamRecord, offset_of, partition_of
from headrace.types import TopicPartition

_ID: Final = re.compile(r"([^:]*[0-9]):([0-9]{1,128})(?::([0-9]{1,9}))?", re.ASCII)
_OF_LOGGING: Final = {"exc_info", "stack_info", "stacklevel", "extra"}


@dataclass(slots=True)
class Message:
    """A record of a stream, as `process_batch` receives it.

    Attributes:
        id: The argument of `checkpoint`: the shard, the sequence number, and the index of a user record in its
            aggregate.
        payload: The data of the record.
        stream: The name of the stream.
        shard_id: The id of the shard.
        partition_key: The producer's key.
        ts_server: The time at which Kinesis stored the record, in UTC.
    """

    id: str
    payload: bytes
    stream: str
    shard_id: str
    partition_key: str
    ts_server: datetime


def message_of(record: StreamRecord) -> Message:
    """Return a record as a message."""
    return Message(
        f"{record.shard}:{record.place}",
        record.value,
        record.topic,
        record.shard,
        record.key.decode(),
        datetime.fromtimestamp(record.timestamp_ms / 1000, UTC),
    )


def place_of(message_id: str, stream: str) -> tuple[TopicPartition, int]:
    """Return the shard of a message and its offset there.

    Raises:
        ConfigError: The text is not the id of a message.
    """
    found = _ID.fullmatch(message_id)
    if found is None:
        raise ConfigError(
            f"{message_id!r} is not the id of a message: pass checkpoint() the id of a message that fetch() returned"
        )
    shard, number, sub_sequence = found.groups()
    offset = offset_of(number, None if sub_sequence is None else int(sub_sequence))
    return TopicPartition(stream, partition_of(shard)), offset


class BoundLogger(logging.LoggerAdapter[Any]):
    """A standard logger with fields, like a logger of structlog: `log.bind(group="g").info("acquired", shard=1)`."""

    def __init__(self, logger: Any, fields: Mapping[str, object] | None = None) -> None:
        """Wrap a logger. `fields` are added to all its messages."""
        super().__init__(logger)
        self._fields = dict(fields or {})

    def bind(self, **fields: object) -> Self:
        """Return a logger that adds further fields to all messages."""
        return type(self)(self.logger, self._fields | fields)

    def log(self, level: int, msg: object, *args: object, **options: Any) -> None:
        """Log a message with its fields. Formatters find the fields in `record.fields`."""
        if not self.isEnabledFor(level):
            return
        fields = self._fields | {
            name: options.pop(name) for name in list(options) if name not in _OF_LOGGING
        }
        options["extra"] = {**(options.get("extra") or {}), "fields": fields}
        options["stacklevel"] = options.get("stacklevel", 1) + 1
        text = str(msg) % args if args else str(msg)
        suffix = "".join(f" {name}={value}" for name, value in fields.items())
        self.logger.log(level, "%s%s", text, suffix, **options)


def bound(logger: Any, **fields: object) -> Any:
    """Return a program's logger with fields: by its own `bind` method, as structlog's, or by `BoundLogger`."""
    if not hasattr(logger, "bind"):
        logger = BoundLogger(logger)
    return logger.bind(**fields)
