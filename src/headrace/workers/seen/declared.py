"""The durable forms of `seen=`, as a program declares them: `SeenTopic` and `SeenFile`."""

from __future__ import annotations

import math
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from headrace.errors import ConfigError
from headrace.workers.seen.keys import DEFAULT_RETENTION_S

TOPIC_PREFIX: Final = "headrace-seen."
"""The prefix of the default names of topics that keep keys."""
MAX_TOPIC_CHARACTERS: Final = 249
_NOT_IN_NAMES: Final = re.compile(r"[^A-Za-z0-9._-]")


@dataclass(frozen=True)
class SeenTopic:
    """Keeps the keys of `dedupe=` in a compacted topic: `@app.worker(..., dedupe=..., seen=headrace.SeenTopic())`.

    A key is written when its handler has ended, before the record's position is committed; with
    `delivery="exactly_once"`, in the transaction that commits the position. A member that gets a partition reads the
    keys of that partition before it handles records of it. So a record that comes again after a death is recognised,
    on whichever member.

    Attributes:
        topic: The topic; None is `headrace-seen.<group>.<worker>`. The worker creates it, with as many partitions as
            the largest of its topics has. Add no partitions to it later.
        retention_s: Seconds for which a key is kept. The worker writes it into the configuration of a topic that it
            creates.
        max_keys: Of each partition, so many of the newest keys are read and kept in memory.
    """

    topic: str | None = None
    retention_s: float = DEFAULT_RETENTION_S
    max_keys: int = 10_000

    def __post_init__(self) -> None:
        _check(self.retention_s, self.max_keys)
        if self.topic is not None and (
            _NOT_IN_NAMES.search(self.topic) or not 0 < len(self.topic) <= MAX_TOPIC_CHARACTERS
        ):
            raise ConfigError(f"SeenTopic({self.topic!r}): this is no name of a topic")

    def name_for(self, group: str, worker: str) -> str:
        """Return the name of the topic with the keys of a worker."""
        named = _NOT_IN_NAMES.sub("_", f"{TOPIC_PREFIX}{group}.{worker}")
        return self.topic or named[:MAX_TOPIC_CHARACTERS]


@dataclass(frozen=True)
class SeenFile:
    """Keeps the keys of `dedupe=` in an SQLite file, which any number of processes of one machine may share.

    A key is written when its handler has ended, before the record's position is committed; with
    `delivery="exactly_once"`, after the transaction that commits the position.

    Attributes:
        path: The file; it is created, with the directories above it. It has to be on a disk of this machine.
        retention_s: Seconds for which a key is kept.
        max_keys: So many of the newest keys of a worker are kept.
        sync: Whether a key has reached the disk before its record's position is committed. False is faster: a process
            that dies still loses no key, but a power cut may lose the last ones.
    """

    path: str | os.PathLike[str]
    retention_s: float = DEFAULT_RETENTION_S
    max_keys: int = 1_000_000
    sync: bool = True

    def __post_init__(self) -> None:
        _check(self.retention_s, self.max_keys)
        if not os.fspath(self.path):
            raise ConfigError("SeenFile(''): give the path of a file")

    @property
    def file(self) -> Path:
        """The path of the SQLite file."""
        return Path(self.path)


def _check(retention_s: float, max_keys: int) -> None:
    if not 0 < retention_s < math.inf or max_keys < 1:
        raise ConfigError("retention_s is positive and finite, and max_keys is at least 1")
