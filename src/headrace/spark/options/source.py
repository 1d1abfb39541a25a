"""The options of a read, checked before anything runs. Names and meanings are those of Spark's Kafka connector."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

from headrace.errors import ConfigError
from headrace.spark.options.reader import WITHOUT_EFFECT, ClientOptions, OptionReader
from headrace.types import TopicPartition

EARLIEST: Final = -2
LATEST: Final = -1
"""What stands for the first and the next offset in offsets given as JSON; ListOffsets has the same numbers."""

_SELECTIONS: Final = ("subscribe", "assign", "subscribePattern")
SOURCE_OPTIONS: Final = (
    *_SELECTIONS,
    "startingOffsets",
    "endingOffsets",
    "maxOffsetsPerTrigger",
    "failOnDataLoss",
    "includeHeaders",
    "kafkaConsumer.pollTimeoutMs",
)

Positions = Mapping[TopicPartition, int]
Starting = Literal["earliest", "latest"] | Positions


@dataclass(frozen=True)
class Selection:
    """Which partitions to read: exactly one of the three is given."""

    topics: tuple[str, ...] = ()
    pattern: str | None = None
    partitions: tuple[TopicPartition, ...] = ()

    @property
    def names(self) -> tuple[str, ...] | None:
        """The topics to ask for; None when only their listing can tell."""
        if self.pattern is not None:
            return None
        return self.topics or tuple(sorted({topic for topic, _ in self.partitions}))


@dataclass(frozen=True)
class SourceOptions:
    """What a read was asked for."""

    client: ClientOptions
    selection: Selection
    starting: Starting
    ending: Literal["latest"] | Positions = "latest"
    max_offsets_per_trigger: int | None = None
    fail_on_data_loss: bool = True
    include_headers: bool = False
    poll_timeout_ms: int = 120_000


def source_options(options: Mapping[str, str], *, streaming: bool | None) -> SourceOptions:
    """Check the options of a read.

    Args:
        options: By name, in any case.
        streaming: Whether the read is a stream; None where that is not known yet, and what only one of the two may
            have is let pass.

    Raises:
        ConfigError: An option is unknown, missing, contradicts another or has a value that it cannot have.
    """
    reader = OptionReader(options, (*SOURCE_OPTIONS, *WITHOUT_EFFECT))
    starting = _starting(reader.text("startingOffsets"), streaming=streaming)
    ending_text = reader.text("endingOffsets")
    if streaming is True and ending_text is not None:
        raise ConfigError("option endingOffsets is for batch reads; a stream has no end")
    poll_timeout_ms = reader.number("kafkaConsumer.pollTimeoutMs", 120_000)
    assert poll_timeout_ms is not None
    return SourceOptions(
        client=reader.client(),
        selection=_selection(reader),
        starting=starting,
        ending=_ending(ending_text),
        max_offsets_per_trigger=reader.number("maxOffsetsPerTrigger", None),
        fail_on_data_loss=reader.flag("failOnDataLoss", default=True),
        include_headers=reader.flag("includeHeaders", default=False),
        poll_timeout_ms=poll_timeout_ms,
    )


def _selection(reader: OptionReader) -> Selection:
    given = [name for name in _SELECTIONS if reader.text(name) is not None]
    if len(given) != 1:
        raise ConfigError(
            f"exactly one of {', '.join(_SELECTIONS)} is needed, got {' and '.join(given) or 'none'}"
        )
    text = reader.text(given[0]) or ""
    if given[0] == "subscribe":
        topics = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
        if not topics:
            raise ConfigError("option subscribe names no topic")
        return Selection(topics=topics)
    if given[0] == "subscribePattern":
        try:
            re.compile(text)
        except re.error as error:
            raise ConfigError(
                f"option subscribePattern is not a regular expression: {error}"
            ) from None
        return Selection(pattern=text)
    return Selection(partitions=_assigned(text))


def _assigned(text: str) -> tuple[TopicPartition, ...]:
    example = """option assign must be like {"topic": [0, 1]}"""
    try:
        parsed = json.loads(text)
    except ValueError as error:
        raise ConfigError(f"{example}: {error}") from None
    partitions: list[TopicPartition] = []
    for topic, numbers in parsed.items() if isinstance(parsed, dict) else ():
        if not isinstance(numbers, list) or not all(type(n) is int and n >= 0 for n in numbers):
            raise ConfigError(f"{example}, not {text!r}")
        partitions += (TopicPartition(topic, number) for number in numbers)
    if not partitions:
        raise ConfigError(f"{example}, not {text!r}")
    return tuple(sorted(set(partitions)))


def _starting(text: str | None, *, streaming: bool | None) -> Starting:
    if text is None:
        return "latest" if streaming else "earliest"
    if text.lower() == "earliest":
        return "earliest"
    if text.lower() == "latest":
        if streaming is False:
            raise ConfigError(
                "option startingOffsets cannot be latest in a batch read: nothing would be read"
            )
        return "latest"
    positions = _positions("startingOffsets", text)
    if streaming is False and LATEST in positions.values():
        raise ConfigError("option startingOffsets cannot have -1 (latest) in a batch read")
    return positions


def _ending(text: str | None) -> Literal["latest"] | Positions:
    if text is None or text.lower() == "latest":
        return "latest"
    if text.lower() == "earliest":
        raise ConfigError("option endingOffsets cannot be earliest: nothing would be read")
    positions = _positions("endingOffsets", text)
    if EARLIEST in positions.values():
        raise ConfigError("option endingOffsets cannot have -2 (earliest)")
    return positions


def _positions(name: str, text: str) -> Positions:
    example = (
        f"""option {name} must be earliest, latest or like {{"topic": {{"0": 23, "1": -2}}}}"""
    )
    try:
        parsed = json.loads(text)
    except ValueError:
        raise ConfigError(f"{example}, not {text!r}") from None
    positions: dict[TopicPartition, int] = {}
    if not isinstance(parsed, dict) or not all(isinstance(part, dict) for part in parsed.values()):
        raise ConfigError(f"{example}, not {text!r}")
    for topic, part in parsed.items():
        for number, offset in part.items():
            if not number.isdigit() or type(offset) is not int or offset < EARLIEST:
                raise ConfigError(f"{example}; {topic} has {number!r}: {offset!r}")
            positions[TopicPartition(topic, int(number))] = offset
    return positions
