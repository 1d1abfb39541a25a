"""Power cuts of a follower that truncates its log, on real files: nothing below the cut is lost.

The follower's system calls are recorded, and replayed to images of the disk; see docs/reports/crash-testing.md.
HEADRACE_TRUNCATION_CHAINS sets the number of chains, HEADRACE_CRASH_IMAGES the images for each of their three lives.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from headrace.errors import StorageError
from tests.crash.disk import Disk, Image, Names, read_image, write_image
from tests.crash.follower import CONFIG, log_of, open_manager
from tests.crash.ledger import LostError
from tests.crash.recording import (
    CACHE,
    ROOT,
    Event,
    Kind,
    build_recorder,
    read_events,
    recorder_environment,
)
from tests.crash.replay import choose_points, digest, scratch_directory
from tests.fixtures.logs import NOW_MS
from tests.simulation.log.checks import Checker, batches_of
from tests.simulation.log.model import Batch, Model, ViolationError

CHAINS = int(os.environ.get("HEADRACE_TRUNCATION_CHAINS", "1"))
IMAGES = int(os.environ.get("HEADRACE_CRASH_IMAGES", "35"))
STEPS = 100


class FollowerLedger:
    """The batches that a follower has received, in the order of the recording."""

    def __init__(self) -> None:
        self.batches: list[Batch] = []
        self.floor = 0
        """The offset below which nothing may be lost."""
        self.counts: Counter[str] = Counter()

    def apply(self, event: Event) -> None:
        """Apply a note of the follower."""
        note = json.loads(event.data)
        self.counts[note["what"]] += 1
        getattr(self, f"_{note['what']}")(note)

    def _replicating(self, note: dict[str, str]) -> None:
        self.batches.append(Batch(bytes.fromhex(note["batch"])))

    def _synced(self, note: dict[str, int]) -> None:
        self.floor = note["end"]

    def _truncating(self, note: dict[str, int]) -> None:
        self.floor = min(self.floor, note["end"])

    def _truncated(self, note: dict[str, int]) -> None:
        self.batches = [batch for batch in self.batches if batch.end <= note["end"]]

    def _opened(self, note: dict[str, int]) -> None:
        self._truncated(note)
        self.floor = note["end"]

    def check(self, directory: Path) -> None:
        """Open the log on an image twice, and compare it with the batches.

        Raises:
            LostError: A batch is missing, or the second start has changed something.
        """
        first = self._check_log(directory)
        before = segments_in(directory)
        if self._check_log(directory) != first or segments_in(directory) != before:
            raise LostError("a second recovery changed something")

    def _check_log(self, directory: Path) -> tuple[object, ...]:
        log = log_of(open_manager(directory))
        found = batches_of(log)
        if found != self.batches[: len(found)]:
            raise LostError(f"{found} is not the beginning of {self.batches}")
        if log.log_end_offset < self.floor:
            raise LostError(f"the log ends at {log.log_end_offset}, safe up to {self.floor}")
        model = Model()
        for batch in found:
            model.add(batch)
        Checker(model, CONFIG, NOW_MS).check(log, random.Random(1))
        return log.log_start_offset, log.log_end_offset, log.epochs.entries


def segments_in(directory: Path) -> Image:
    """Return the segment files of a directory."""
    return {
        path: content for path, content in read_image(directory).items() if path.endswith(".log")
    }


@dataclass
class FollowerChain:
    """A follower's lives, each of which begins on an image of the life before."""

    directory: Path
    seed: int
    defence: str = ""
    ignored: str = "$^"
    images: int = 0
    distinct: set[bytes] = field(default_factory=set)
    lost: list[str] = field(default_factory=list)
    ledger: FollowerLedger = field(default_factory=FollowerLedger)
    image: Image = field(default_factory=dict)
    life: int = 0

    def live(self, images: int) -> None:
        """Record one life and check its images."""
        data, recording = (
            self.directory / f"follower-{self.life}",
            self.directory / f"{self.life}.events",
        )
        known = self.directory / f"{self.life}.known"
        known.write_text("\n".join(batch.raw.hex() for batch in self.ledger.batches))
        write_image(self.image, data)
        command = [sys.executable, "-m", "tests.crash.follower", str(data), str(recording)]
        subprocess.run(
            [*command, str(self.seed * 100 + self.life), str(STEPS), str(known), self.defence],
            cwd=ROOT,
            env={**os.environ, **recorder_environment(data, recording)},
            check=True,
            timeout=120,
        )
        self._replay(data, list(read_events(recording)), images)
        self.life += 1

    def _replay(self, data: Path, events: list[Event], images: int) -> None:
        chance = random.Random(f"{self.seed} {self.life}")
        disk = Disk(data, self.image, ignored=self.ignored)
        points = Counter(choose_points(events, images, chance))
        truncating = False
        for number, event in enumerate(events):
            for _ in range(points[number] or (truncating and chance.random() < 0.08)):
                self._check_image(disk, number, chance)
            if event.kind is Kind.MARK:
                self.ledger.apply(event)
                truncating = b'"truncating"' in event.data
            else:
                disk.apply(event)
        self.image = disk.image_after_power_cut(self.seed, Names.POSIX)
        assert disk.image() == read_image(data), "the replayed recording is not what is on the disk"

    def _check_image(self, disk: Disk, point: int, chance: random.Random) -> None:
        kind = chance.choice(["posix", "posix", "posix", "ext4", "ext4", "killed"])
        seed = chance.randrange(1 << 32)
        names = Names.POSIX if kind == "posix" else Names.JOURNAL
        image = disk.image() if kind == "killed" else disk.image_after_power_cut(seed, names)
        self.images += 1
        self.distinct.add(digest(image))
        with scratch_directory() as directory:
            write_image(image, directory)
            try:
                self.ledger.check(directory)
            except (LostError, ViolationError, AssertionError, StorageError) as error:
                where = f"seed {self.seed}, life {self.life}, event {point}, {kind} {seed}"
                self.lost.append(f"{where}: {type(error).__name__}: {error}")


@pytest.fixture(autouse=True)
def _recorder() -> None:
    build_recorder()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 1 + CHAINS))
def test_a_truncation_loses_nothing_below_the_cut(tmp_path: Path, seed: int) -> None:
    chain = FollowerChain(tmp_path, seed)
    for _ in range(3):
        chain.live(IMAGES)
    counts = chain.ledger.counts
    result = (
        f"follower {seed}: {chain.images} images ({len(chain.distinct)} distinct) with {counts['truncated']} "
        f"truncations: {len(chain.lost)} lost something"
    )
    print(result)
    with (CACHE / "results.txt").open("a") as results:
        results.write(f"{result}\n")
    assert not chain.lost, "\n".join(chain.lost[:20])
    assert counts["truncated"] > 10, "the log was truncated"
    assert counts["synced"] > 20, "the log was synced"
    assert len(chain.distinct) > IMAGES, "the images differ"


@pytest.mark.slow
@pytest.mark.parametrize(
    "defence",
    [
        "the recovery point is lowered before a truncation",
        "files that describe more than remains are removed",
        "gaps are legal in the last segment of a log that may have them",
    ],
)
def test_the_images_show_a_missing_defence_of_truncation(tmp_path: Path, defence: str) -> None:
    """A check that cannot fail proves nothing."""
    assert finds_a_loss(tmp_path, defence=defence)


@pytest.mark.slow
@pytest.mark.parametrize("ignored", [r"\.log$", r"-\d+/$"], ids=["segments", "log directories"])
def test_the_images_show_missing_syncs_of_a_follower(tmp_path: Path, ignored: str) -> None:
    assert finds_a_loss(tmp_path, ignored=ignored)


def finds_a_loss(directory: Path, *, defence: str = "", ignored: str = "$^") -> bool:
    """Return whether one of some lives finds a loss."""
    for seed in range(1, 9):
        parent = directory / str(seed)
        parent.mkdir()
        chain = FollowerChain(parent, seed, defence, ignored)
        chain.live(40)
        if chain.lost:
            return True
    return False
