"""What Spark's checkpoints hold of streams, and what the store holds of a round. All here is pure.

Kinesis has no numbers without gaps and tells nobody where a shard ends at the moment, so that the end of a batch is
known only when it has been read. An offset is therefore the number of a *round*: rounds below it are planned. It has
with it how the last of them was planned: where each shard began. Where a shard's part of a round ends, the first task
that reads it decides and writes to the store, before anybody gets a row; all others read to there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple

import msgspec

from headrace.core.lease.checkpoint import Checkpoint, parse_checkpoint
from headrace.errors import ConfigError

VERSION: Final = 2
"""Of the form of offsets. Form 1 has a single stream, whose name the store's names leave out; it stays readable."""
END_VERSION: Final = 1
"""Of the form of ends in the store."""


class ShardPosition(NamedTuple):
    """Where reading of a shard goes on."""

    checkpoint: Checkpoint
    read_ms: int | None = None
    """All that arrived up to this time was read; None while nothing is known."""


class End(msgspec.Struct, frozen=True, kw_only=True):
    """Where a shard's part of a round ends, as the store has it."""

    v: int = END_VERSION
    position: str
    """From where the next round goes on."""
    rows: int = 0
    first: str | None = None
    last: str | None = None
    """The sequence numbers of its first and last record; a later read makes sure that it finds the same."""
    read_ms: int | None = None
    behind_ms: int | None = None

    @property
    def place(self) -> ShardPosition:
        """Where the next round goes on."""
        return ShardPosition(parse_checkpoint(self.position), self.read_ms)

    def to_text(self) -> str:
        """Return what the store keeps."""
        return msgspec.json.encode(self).decode()


def parse_end(text: str) -> End:
    """Read what `End.to_text` returned.

    Raises:
        ConfigError: A later version wrote it, or something else.
    """
    try:
        end = msgspec.json.decode(text, type=End)
    except msgspec.MsgspecError:
        raise ConfigError(
            f"the store has {text[:80]!r} where the end of a round should be: something else writes to it"
        ) from None
    if end.v > END_VERSION:
        raise ConfigError(
            f"the store has the end of a round in form {end.v}, and this version of Headrace knows {END_VERSION}: "
            "update it"
        )
    return end


def round_name(round_number: int) -> str:
    """Return the name of a round's token in the store; tasks tell by it that theirs is the driver's store."""
    return f"{round_number}/"


def round_of(name: str) -> int:
    """Return which round a name in the store is of."""
    return int(name.partition("/")[0])


@dataclass(frozen=True)
class Shards:
    """What a query knows of a stream's shards at the beginning of a round."""

    active: Mapping[str, ShardPosition] = field(default_factory=dict)
    """Those that are read."""
    waiting: Mapping[str, Checkpoint] = field(default_factory=dict)
    """Where shards begin whose parents come first; those that are not named begin at TRIM_HORIZON."""
    done: frozenset[str] = frozenset()
    """Those that were read to their end, or lie before the query's start; until Kinesis forgets them."""


@dataclass(frozen=True)
class StreamPart:
    """What the last round has of one stream."""

    stream: str
    """`<name>@<creation time>`, as the stream is known."""
    reads: tuple[str, ...] = ()
    """The shards that it reads."""
    shards: Shards = field(default_factory=Shards)
    """As they were at its beginning."""

    @property
    def name(self) -> str:
        """The stream's name."""
        return self.stream.rpartition("@")[0]

    def nothing_read(self, shard: str) -> End:
        """Return the end of a shard that no task of the round has read."""
        place = self.shards.active[shard]
        return End(position=place.checkpoint.position, read_ms=place.read_ms)

    def after(self, ends: Mapping[str, End]) -> Shards:
        """Return the shards as they are when the round has ended so; those that have ended are still in it."""
        moved = {shard: end.place for shard, end in ends.items()}
        return replace(self.shards, active={**self.shards.active, **moved})

    def to_json(self) -> dict[str, Any]:
        """Return its part of what checkpoints hold."""
        return {
            "reads": list(self.reads),
            "shards": {
                shard: [place.checkpoint.position, place.read_ms]
                for shard, place in self.shards.active.items()
            },
            "waiting": {shard: each.position for shard, each in self.shards.waiting.items()},
            "done": sorted(self.shards.done),
        }

    @classmethod
    def from_json(cls, stream: str, encoded: Mapping[str, Any]) -> StreamPart:
        """Read what `to_json` returned."""
        return cls(
            stream,
            reads=tuple(encoded["reads"]),
            shards=Shards(
                active={
                    shard: ShardPosition(parse_checkpoint(position), read_ms)
                    for shard, (position, read_ms) in encoded["shards"].items()
                },
                waiting={
                    shard: parse_checkpoint(each) for shard, each in encoded["waiting"].items()
                },
                done=frozenset(encoded["done"]),
            ),
        )


@dataclass(frozen=True)
class StreamOffset:
    """An offset of Spark's: `round` is the next one, and the rest says how the one before it was planned."""

    query: str
    """A random id: what is written to the store under it is of this checkpoint only."""
    round: int = 0
    token: str = ""
    tasks: int = 1
    """How many tasks it has; if it is repeated it has as many, whatever the options are by then."""
    until_ms: int | None = None
    """Records that arrived later are left for a later run."""
    parts: Mapping[str, StreamPart] = field(default_factory=dict)
    """By the names of streams."""
    form: int = VERSION

    @property
    def planned(self) -> int:
        """The number of the last round that is planned."""
        return self.round - 1

    def end_name(self, part: StreamPart, shard: str) -> str:
        """Return the name that the end of a shard's part of the last round has in the store."""
        return (
            f"{self.planned}/{shard}" if self.form == 1 else f"{self.planned}/{part.name}/{shard}"
        )

    def to_json(self) -> dict[str, Any]:
        """Return the form that checkpoints hold."""
        plan = {
            "token": self.token,
            "tasks": self.tasks,
            "untilMs": self.until_ms,
            "streams": {part.stream: part.to_json() for part in self.parts.values()},
        }
        head = {"version": VERSION, "query": self.query, "round": self.round}
        return head | ({"planned": plan} if self.round else {})

    @classmethod
    def from_json(cls, encoded: Mapping[str, Any]) -> StreamOffset:
        """Read what `to_json` returned, now or in an earlier version.

        Raises:
            ConfigError: It is of a later version, or of another source.
        """
        try:
            version, query, number = encoded["version"], encoded["query"], encoded["round"]
        except (KeyError, TypeError):
            raise ConfigError(
                "the checkpoint is not one of format headrace-kinesis: give the query another checkpointLocation"
            ) from None
        if version > VERSION:
            raise ConfigError(
                f"the checkpoint has form {version}, and this version of Headrace knows {VERSION}: update it"
            )
        if not number:
            return cls(query)
        plan = encoded["planned"]
        streams = {plan["stream"]: plan} if version == 1 else plan["streams"]
        parts = [StreamPart.from_json(stream, each) for stream, each in streams.items()]
        return cls(
            query=query,
            round=number,
            token=plan["token"],
            tasks=plan["tasks"],
            until_ms=plan["untilMs"],
            parts={part.name: part for part in parts},
            form=version,
        )
