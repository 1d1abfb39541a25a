"""The durable forms of `seen=`, as a program declares them: `SeenTopic` and `SeenFile`."""

from __future__ import annotations

import math
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from headrace.errors import ConfigError
from headrace.workers.deduplication.keys import DEFAULT_RETENTION_S

TOPIC_PREFIX: Final = "headrace-seen."
"""The prefix of the default names of topics that keep keys."""
MAX_TOPIC_CHARACTERS: Final = 249
"""The longest topic name in Kafka."""
_NOT_IN_NAMES: Final = re.compile(r"[^A-Za-z0-9._-]")


@dataclass(frozen=True)
class SeenTopic:
    """Keeps the keys of `dedupe=` in a compacted topic: `@app.worker(..., dedupe=..., seen=headrace.SeenTopic())`.

    A key is written after its handler has ended and before the record's offset is committed. With
    `delivery="exactly_once"` the transaction that commits the offset writes the key. A member reads the keys of an
    assigned partition before it handles records of the partition. So every member recognises a record that comes again
    after a crash.

    Attributes:
        topic: The topic; None is `headrace-seen.<group>.<worker>`. The worker creates it with as many partitions as
            the largest of its input topics. Do not add partitions to it later.
        retention_s: How long a key is kept, in seconds. It becomes the retention of a topic that the worker creates.
        max_keys: The number of newest keys of each partition that the worker reads and keeps in memory.
    """

    topic: str | None = None
    retention_s: float = DEFAULT_RETENTION_S
    max_keys: int = 10_000

    def __post_init__(self) -> None:
        _check(self.retention_s, self.max_keys)
        if self.topic is not None and (
            _NOT_IN_NAMES.search(self.topic) or not 0 < len(self.topic) <= MAX_TOPIC_CHARACTERS
        ):
            raise ConfigError(
                f"SeenTopic({self.topic!r}): this is not a valid topic name. Use up to {MAX_TOPIC_CHARACTERS} of a-z, "
                "A-Z, 0-9, '.', '_' and '-'"
            )

    def name_for(self, group: str, worker: str) -> str:
        """Return the name of the topic with the keys of a worker."""
        named = _NOT_IN_NAMES.sub("_", f"{TOPIC_PREFIX}{group}.{worker}")
        return self.topic or named[:MAX_TOPIC_CHARACTERS]


@dataclass(frozen=True)
class SeenFile:
    """Keeps the keys of `dedupe=` in an SQLite file, which any number of processes of one machine may share.

    A key is written after its handler has ended and before the record's offset is committed. With
    `delivery="exactly_once"` it is written after the transaction that commits the offset.

    Attributes:
        path: The file. The worker creates it, with its parent directories. It must be on a disk of this machine.
        retention_s: How long a key is kept, in seconds.
        max_keys: The number of newest keys of a worker that are kept.
        sync: Whether a key has reached the disk before its record's offset is committed. False is faster: a crash of
            the process loses no key, but a power cut may lose the last keys.
    """

    path: str | os.PathLike[str]
    retention_s: float = DEFAULT_RETENTION_S
    max_keys: int = 1_000_000
    sync: bool = True

    def __post_init__(self) -> None:
        _check(self.retention_s, self.max_keys)
        if not os.fspath(self.path):
            raise ConfigError("SeenFile(''): the path is empty. Pass the path of a file")

    @property
    def file(self) -> Path:
        """The path of the SQLite file."""
        return Path(self.path)


def _check(retention_s: float, max_keys: int) -> None:
    if not 0 < retention_s < math.inf or max_keys < 1:
        raise ConfigError("retention_s is positive and finite, and max_keys is at least 1")
