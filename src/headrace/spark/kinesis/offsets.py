"""The offsets of streams in Spark's checkpoints, and the ends of rounds in the store. All functions are pure.

Sequence numbers of Kinesis have gaps, and Kinesis does not report the present end of a shard. So the end of a batch is
known only after the batch was read. An offset is therefore the number of a *round*: all rounds below it are planned.
The offset also has the plan of the last of these rounds, with the position at which each shard starts. The first task
that reads a shard's part of a round decides the end of the part, and writes it to the store before it returns a row.
All other tasks read up to that end.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple

import msgspec

from headrace.core.lease.checkpoint import Checkpoint, parse_checkpoint
from headrace.errors import ConfigError

VERSION: Final = 2
"""The version of the form of offsets. Form 1 has a single stream, whose name is not in the names of the store. It can
still be read."""
END_VERSION: Final = 1
"""The version of the form of ends in the store."""


class ShardPosition(NamedTuple):
    """The position at which reading of a shard continues."""

    checkpoint: Checkpoint
    read_ms: int | None = None
    """All records that arrived up to this time were read, in milliseconds since 1970; None if that is not known."""


class End(msgspec.Struct, frozen=True, kw_only=True):
    """The end of a shard's part of a round, as the store has it."""

    v: int = END_VERSION
    position: str
    """The position at which the next round continues."""
    rows: int = 0
    first: str | None = None
    last: str | None = None
    """`first` and `last` are the sequence numbers of the part's first and last record, None without records. A later
    read of the part checks that it finds the same records."""
    read_ms: int | None = None
    behind_ms: int | None = None

    @property
    def continuation(self) -> ShardPosition:
        """The position at which the next round continues, parsed."""
        return ShardPosition(parse_checkpoint(self.position), self.read_ms)

    def to_text(self) -> str:
        """Encode the end for the store."""
        return msgspec.json.encode(self).decode()


def parse_end(text: str) -> End:
    """Parse the text of `End.to_text`.

    Raises:
        ConfigError: A later version, or another program, wrote the text.
    """
    try:
        end = msgspec.json.decode(text, type=End)
    except msgspec.MsgspecError:
        raise ConfigError(
            f"the store has {text[:80]!r} instead of the end of a round: another program writes to it"
        ) from None
    if end.v > END_VERSION:
        raise ConfigError(
            f"the store has the end of a round in form {end.v}, and this version of Headrace knows {END_VERSION}: "
            "update it"
        )
    return end


def round_name(round_number: int) -> str:
    """Return the name of a round's token in the store. Tasks compare the token to recognise the driver's store."""
    return f"{round_number}/"


def round_of(name: str) -> int:
    """Return the round of a name in the store."""
    return int(name.partition("/")[0])


@dataclass(frozen=True)
class Shards:
    """The shards of a stream at the beginning of a round."""

    active: Mapping[str, ShardPosition] = field(default_factory=dict)
    """The shards that are being read, with their positions."""
    waiting: Mapping[str, Checkpoint] = field(default_factory=dict)
    """The starting positions of shards whose parents are read first. Other such shards start at TRIM_HORIZON."""
    done: frozenset[str] = frozenset()
    """The shards that were read to their end, or that are before the query's start, as long as Kinesis lists them."""


@dataclass(frozen=True)
class StreamPart:
    """One stream's part of the last planned round."""

    stream: str
    """The identification of the stream, `<name>@<creation time>`."""
    reads: tuple[str, ...] = ()
    """The shards that the round reads."""
    shards: Shards = field(default_factory=Shards)
    """All shards at the beginning of the round."""

    @property
    def name(self) -> str:
        return self.stream.rpartition("@")[0]

    def nothing_read(self, shard: str) -> End:
        """Return the end of a shard that no task of the round has read."""
        position = self.shards.active[shard]
        return End(position=position.checkpoint.position, read_ms=position.read_ms)

    def after(self, ends: Mapping[str, End]) -> Shards:
        """Return the shards after the round. Shards that were read to their end are still among the active shards."""
        moved = {shard: end.continuation for shard, end in ends.items()}
        return replace(self.shards, active={**self.shards.active, **moved})

    def to_json(self) -> dict[str, Any]:
        """Encode the part for a checkpoint."""
        return {
            "reads": list(self.reads),
            "shards": {
                shard: [position.checkpoint.position, position.read_ms]
                for shard, position in self.shards.active.items()
            },
            "waiting": {shard: each.position for shard, each in self.shards.waiting.items()},
            "done": sorted(self.shards.done),
        }

    @classmethod
    def from_json(cls, stream: str, encoded: Mapping[str, Any]) -> StreamPart:
        """Decode a part of a checkpoint."""
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
    """An offset of Spark: the number of the next round, and the plan of the round before it."""

    query: str
    """A random id of the checkpoint. Only queries with this checkpoint write to the store under the id."""
    round: int = 0
    token: str = ""
    tasks: int = 1
    """The number of tasks of the planned round. A repetition has the same number, even with other options."""
    until_ms: int | None = None
    """Records that arrived later, in milliseconds since 1970, are left for a later run; None is no limit."""
    parts: Mapping[str, StreamPart] = field(default_factory=dict)
    """The parts of the planned round, by stream name."""
    form: int = VERSION

    @property
    def planned(self) -> int:
        """The number of the last round that is planned."""
        return self.round - 1

    def end_name(self, part: StreamPart, shard: str) -> str:
        """Return the name in the store for the end of a shard's part of the planned round."""
        return (
            f"{self.planned}/{shard}" if self.form == 1 else f"{self.planned}/{part.name}/{shard}"
        )

    def to_json(self) -> dict[str, Any]:
        """Encode the offset for a checkpoint."""
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
        """Decode an offset of a checkpoint, of this or an earlier version.

        Raises:
            ConfigError: The checkpoint is of a later version, or of another source.
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
