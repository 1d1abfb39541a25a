"""Replay recordings to crash images, and check a broker on each image.

A run is a chain of lives. In each life: (1) A server runs on an image and is recorded until it is killed. (2) The
recording is replayed, and images are taken during the replay. (3) The next server starts on one of these images. So the
recovery of a server is recorded too, and can crash.
"""

from __future__ import annotations

import bisect
import contextlib
import hashlib
import os
import random
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from headrace.core.log.segments.replacement import SWAP_SUFFIX
from tests.crash.disk import Disk, Image, Names, read_image, write_image
from tests.crash.ledger import Ledger, check_image
from tests.crash.recording import CACHE, Event, Kind, read_events
from tests.crash.workload import record_life

_MEMORY = Path("/dev/shm")


@dataclass
class ImageResults:
    """The results of the images of a run."""

    images: int = 0
    distinct: set[bytes] = field(default_factory=set)
    lost: list[str] = field(default_factory=list)
    acknowledgements: int = 0
    events: int = 0
    compactions: int = 0
    """The number of compacted segments that have replaced others."""
    kinds: Counter[str] = field(default_factory=Counter)

    def __str__(self) -> str:
        kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(self.kinds.items()))
        return (
            f"{self.images} images ({len(self.distinct)} distinct; {kinds}) of {self.events} recorded events with "
            f"{self.acknowledgements} acknowledgements and {self.compactions} compacted segments: "
            f"{len(self.lost)} lost something"
        )


@dataclass(frozen=True)
class Faults:
    """Faults of the disk's model, which test whether the check can fail."""

    arguments: tuple[str, ...] = ()
    ignored: str = "$^"
    """A pattern of the paths whose syncs do nothing; see `Disk`."""


@dataclass
class Chain:
    """One run. `seed` determines the load, the points and the images, but not the timing of the server."""

    directory: Path
    seed: int
    faults: Faults = field(default_factory=Faults)
    directories: int = 1
    """The number of log directories of the server: one or two."""
    results: ImageResults = field(default_factory=ImageResults)
    ledger: Ledger = field(default_factory=Ledger)
    image: Image = field(default_factory=dict)
    life: int = 0

    def live(self, images: int, acknowledgements: int, *, clean: bool = False) -> None:
        """Record one life, check its images, and keep one of them for the next life."""
        data = self.directory / f"life-{self.life}"
        recording = self.directory / f"life-{self.life}.events"
        write_image(self.image, data)
        record_life(
            data,
            recording,
            seed=self.seed * 1000 + self.life,
            number=self.life,
            acknowledgements=acknowledgements,
            arguments=self.faults.arguments,
            directories=self.directories,
            clean=clean,
        )
        events = list(read_events(recording))
        self.results.events += len(events)
        self.results.compactions += sum(
            event.kind is Kind.RENAME and event.paths[1].endswith(SWAP_SUFFIX) for event in events
        )
        last = self._replay(data, events, images)
        if clean:
            # The recorder has missed no operation, and the model has applied all of them.
            assert last == read_image(data), "the replayed recording is not what is on the disk"
        shutil.rmtree(data)
        self.life += 1

    def _replay(self, data: Path, events: list[Event], images: int) -> Image:
        chance = random.Random(f"{self.seed} {self.life}")
        disk = Disk(data, self.image, ignored=self.faults.ignored)
        points = sorted(choose_points(events, images, chance))
        for number, event in enumerate(events):
            for _ in range(
                bisect.bisect_right(points, number) - bisect.bisect_left(points, number)
            ):
                self._check_image(disk, number, chance)
            if event.kind is Kind.MARK:
                before = self.ledger.acknowledgements
                self.ledger.apply(event)
                self.results.acknowledgements += self.ledger.acknowledgements - before
            else:
                disk.apply(event)
        self.image = disk.image_after_power_cut(self.seed, Names.POSIX)
        return disk.image()

    def _check_image(self, disk: Disk, point: int, chance: random.Random) -> None:
        """Take one image at this point and check it."""
        kind = chance.choice(["posix", "posix", "posix", "ext4", "ext4", "killed"])
        seed = chance.randrange(1 << 32)
        if kind == "killed":
            image = disk.image()
        else:
            names = Names.POSIX if kind == "posix" else Names.JOURNAL
            image = disk.image_after_power_cut(seed, names)
        self.results.images += 1
        self.results.kinds[kind] += 1
        self.results.distinct.add(digest(image))
        with scratch_directory() as directory:
            write_image(image, directory)
            try:
                check_image(self.ledger, directory)
            except Exception as error:  # noqa: BLE001 - any error of a broker is a loss
                where = f"seed {self.seed}, life {self.life}, event {point}, {kind} {seed}"
                self.results.lost.append(f"{where}: {type(error).__name__}: {error}")


def choose_points(events: list[Event], count: int, chance: random.Random) -> Iterator[int]:
    """Choose points for crashes: random points, and points after an acknowledgement or near a sync."""
    near = [
        number + after
        for number, event in enumerate(events)
        for after in (0, 1)
        if event.kind in {Kind.MARK, Kind.SYNC_BEGIN, Kind.SYNC_END, Kind.RENAME, Kind.MKDIR}
        and number + after < len(events)
    ]
    for _ in range(count):
        yield (
            chance.choice(near) if near and chance.random() < 0.5 else chance.randrange(len(events))
        )


def digest(image: Image) -> bytes:
    state = hashlib.blake2b(digest_size=16)
    for path, content in sorted(image.items()):
        state.update(f"{path}\0{-1 if content is None else len(content)}\0".encode())
        state.update(content or b"")
    return state.digest()


@contextlib.contextmanager
def scratch_directory() -> Iterator[Path]:
    """Yield a directory for an image, in memory if possible, where syncs cost nothing."""
    base = _MEMORY if os.access(_MEMORY, os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="headrace-crash-", dir=base) as parent:
        yield Path(parent) / "data"


def keep(chain: Chain) -> Path:
    """Keep the recordings of a run that has lost data, for an analysis."""
    kept = CACHE / f"failed-{chain.seed}"
    shutil.rmtree(kept, ignore_errors=True)
    shutil.copytree(chain.directory, kept)
    (kept / "lost.txt").write_text("\n".join(chain.results.lost) + "\n")
    return kept
