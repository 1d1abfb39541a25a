"""The options for the start and the end of a read: offsets or times, for all partitions or for each partition.

As in Spark's Kafka connector, a time for all partitions takes precedence over times for each partition, and times take
precedence over offsets.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

from headrace.errors import ConfigError
from headrace.spark.options.declared import Option, option_names
from headrace.spark.options.reader import OptionReader
from headrace.types import MAX_INT64, TopicPartition

EARLIEST: Final = -2
LATEST: Final = -1
"""EARLIEST and LATEST stand for the first offset and the end offset. ListOffsets requests use the same numbers."""

STARTING_OPTIONS: Final = (
    Option(
        "startingOffsets",
        '`earliest`, `latest` (streams only) or an offset for every partition, `{"topic": {"0": 23, "1": -2}}`: -2 is '
        "earliest, -1 is latest.",
        default="earliest",
        stream_default="latest",
    ),
    Option(
        "startingOffsetsByTimestamp",
        'A time for every partition in milliseconds since 1970, `{"topic": {"0": 1357034400000}}`. A partition starts '
        "at the first record that the read returns and whose time is the given time or later; -2 is the partition's "
        "beginning, -1 its end. That record is never a transaction marker, which Apache Kafka may return, and with "
        "`read_committed` never a record of an aborted transaction. This option takes precedence over "
        "`startingOffsets`.",
    ),
    Option(
        "startingTimestamp",
        "One such time for all partitions. This option takes precedence over the other two.",
    ),
    Option(
        "startingOffsetsByTimestampStrategy",
        "What happens to a partition without a record of the given time or later: the read fails (`error`), or the "
        "partition starts at its end (`latest`).",
        default="error",
    ),
)
ENDING_OPTIONS: Final = (
    Option(
        "endingOffsets",
        "`latest`, or an offset for every partition as in `startingOffsets`. The end is exclusive.",
        only_for="batch",
        default="latest",
    ),
    Option(
        "endingOffsetsByTimestamp",
        "A time for every partition as in `startingOffsetsByTimestamp`. The partition ends before the first record of "
        "that time or later, at its end if there is none.",
        only_for="batch",
    ),
    Option(
        "endingTimestamp",
        "One such time for all partitions.",
        only_for="batch",
    ),
)


Positions = Mapping[TopicPartition, int]


@dataclass(frozen=True)
class AtTimestamp:
    """In each partition the first record of a time or later, the beginning (EARLIEST) or the end (LATEST)."""

    option: str
    """The name of the option, for messages."""
    timestamps: int | Positions
    """Milliseconds since 1970, EARLIEST or LATEST: for all partitions, or for each partition."""
    else_latest: bool = False
    """Whether a partition without such a record is read from or to its end. Otherwise such a partition is an error."""


Starting = Literal["earliest", "latest"] | Positions | AtTimestamp
Ending = Literal["latest"] | Positions | AtTimestamp


def starting(reader: OptionReader, *, streaming: bool | None) -> Starting:
    """Parse the start of a read.

    Raises:
        ConfigError: An option is malformed, or not for this kind of read.
    """
    strategy = reader.choice("startingOffsetsByTimestampStrategy", ("error", "latest"))
    at = _at_timestamp(reader, "starting", else_latest=strategy == "latest")
    if at is not None:
        return at
    text = reader.text("startingOffsets")
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


def ending(reader: OptionReader, *, streaming: bool | None) -> Ending:
    """Parse the end of a batch read.

    Raises:
        ConfigError: An option is malformed, or the read is a stream.
    """
    for option in option_names(ENDING_OPTIONS) if streaming else ():
        if reader.text(option) is not None:
            raise ConfigError(f"option {option} is for batch reads; a stream has no end")
    at = _at_timestamp(reader, "ending", else_latest=True)
    if at is not None:
        return at
    text = reader.text("endingOffsets")
    if text is None or text.lower() == "latest":
        return "latest"
    if text.lower() == "earliest":
        raise ConfigError("option endingOffsets cannot be earliest: nothing would be read")
    positions = _positions("endingOffsets", text)
    if EARLIEST in positions.values():
        raise ConfigError("option endingOffsets cannot have -2 (earliest)")
    return positions


def check_order(start: Starting, end: Ending) -> None:
    """Compare start and end as far as that is possible without a broker.

    Raises:
        ConfigError: Start and end name different partitions, or a start is after its end.
    """
    if isinstance(start, AtTimestamp) and isinstance(end, AtTimestamp):
        first, last, names = start.timestamps, end.timestamps, (start.option, end.option)
    elif isinstance(start, Mapping) and isinstance(end, Mapping):
        first, last, names = start, end, ("startingOffsets", "endingOffsets")
    else:
        return
    if isinstance(first, int) and isinstance(last, int) and 0 <= last < first:
        raise ConfigError(f"option {names[0]} {first} is after {names[1]} {last}")
    if isinstance(first, int) or isinstance(last, int):
        return
    differing = sorted(first.keys() ^ last.keys())
    if differing:
        raise ConfigError(
            f"options {names[0]} and {names[1]} must name the same partitions; "
            f"only one of them has {', '.join(map(str, differing))}"
        )
    for each in sorted(first):
        if 0 <= last[each] < first[each]:
            raise ConfigError(
                f"{names[0]} {first[each]} of {each} is after {names[1]} {last[each]}"
            )


def _at_timestamp(
    reader: OptionReader, side: Literal["starting", "ending"], *, else_latest: bool
) -> AtTimestamp | None:
    option = f"{side}Timestamp"
    text = reader.text(option)
    if text is not None:
        if text not in {str(EARLIEST), str(LATEST)} and not (text.isascii() and text.isdigit()):
            raise ConfigError(f"option {option} must be milliseconds since 1970, not {text!r}")
        if int(text) > MAX_INT64:
            raise ConfigError(f"option {option} must be at most {MAX_INT64}, not {text}")
        return AtTimestamp(option, int(text), else_latest)
    option = f"{side}OffsetsByTimestamp"
    text = reader.text(option)
    if text is None:
        return None
    example = f"""option {option} must be milliseconds since 1970, like {{"topic": {{"0": 1357034400000}}}}"""
    return AtTimestamp(option, _by_partition(example, text, minimum=EARLIEST), else_latest)


def _positions(option: str, text: str) -> Positions:
    example = (
        f"""option {option} must be earliest, latest or like {{"topic": {{"0": 23, "1": -2}}}}"""
    )
    return _by_partition(example, text, minimum=EARLIEST)


def _by_partition(example: str, text: str, *, minimum: int) -> Positions:
    try:
        parsed = json.loads(text)
    except ValueError:
        raise ConfigError(f"{example}, not {text!r}") from None
    found: dict[TopicPartition, int] = {}
    if not isinstance(parsed, dict) or not all(isinstance(part, dict) for part in parsed.values()):
        raise ConfigError(f"{example}, not {text!r}")
    for topic, part in parsed.items():
        for number, value in part.items():
            is_valid = type(value) is int and minimum <= value <= MAX_INT64
            if not (number.isascii() and number.isdigit()) or not is_valid:
                raise ConfigError(f"{example}; {topic} has {number!r}: {value!r}")
            partition = TopicPartition(topic, int(number))
            if partition in found:
                raise ConfigError(f"{example}; {topic} names partition {int(number)} twice")
            found[partition] = value
    return found
