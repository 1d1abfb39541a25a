"""Power cuts of a real server: its system calls are recorded, and replayed up to any point on a model of a disk.

`make crash` checks thousands of images, the tests about a hundred. HEADRACE_CRASH_CHAINS sets the number of chains,
HEADRACE_CRASH_IMAGES the number of images for each of the three lives of a chain, HEADRACE_CRASH_SEED the first seed.
Chains with an odd seed have two log directories. docs/reports/crash-testing.md says what the tests prove.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.crash.recording import CACHE, SECOND, build_recorder
from tests.crash.replay import Chain, Faults, keep

CHAINS = int(os.environ.get("HEADRACE_CRASH_CHAINS", "1"))
IMAGES = int(os.environ.get("HEADRACE_CRASH_IMAGES", "35"))
SEED = int(os.environ.get("HEADRACE_CRASH_SEED", "1"))
ACKNOWLEDGEMENTS = 150


@pytest.fixture(autouse=True)
def _recorder() -> None:
    build_recorder()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(SEED, SEED + CHAINS))
def test_acknowledged_data_survives_a_power_cut(tmp_path: Path, seed: int) -> None:
    chain = Chain(tmp_path, seed, directories=1 + seed % 2)
    for life in range(3):
        chain.live(IMAGES, ACKNOWLEDGEMENTS, clean=life == 1)
    print(f"chain {seed}: {chain.results}")
    with (CACHE / "results.txt").open("a") as results:
        results.write(f"chain {seed}: {chain.results}\n")
    if chain.results.lost:
        kept = keep(chain)
        pytest.fail("\n".join([f"recordings: {kept}", *chain.results.lost[:20]]))
    assert chain.results.acknowledgements > ACKNOWLEDGEMENTS, "there was load"
    assert chain.results.compactions > 0, "logs were compacted under it"
    assert len(chain.results.distinct) > IMAGES, "the images differ"


@pytest.mark.slow
@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(Faults(("--durability", "os")), id="nothing synced"),
        pytest.param(Faults(ignored=r"[^/]$"), id="syncs of files ignored"),
        pytest.param(Faults(ignored=r"/$"), id="syncs of directories ignored"),
        pytest.param(Faults(ignored=r"\.log$"), id="syncs of segments ignored"),
        pytest.param(Faults(ignored=r"^metadata\.sqlite"), id="syncs of metadata ignored"),
        pytest.param(Faults(ignored=r"^/$"), id="syncs of the data directory ignored"),
        pytest.param(Faults(ignored=r"-\d+/$"), id="syncs of log directories ignored"),
    ],
)
def test_the_check_finds_missing_syncs(tmp_path: Path, fault: Faults) -> None:
    """A check that cannot fail proves nothing."""
    check_finds(Chain(tmp_path, SEED, fault))


@pytest.mark.slow
def test_the_check_finds_missing_syncs_in_a_second_directory(tmp_path: Path) -> None:
    check_finds(Chain(tmp_path, SEED, Faults(ignored=rf"^{SECOND}/.*\.log$"), directories=2))


def check_finds(chain: Chain) -> None:
    chain.live(30, 80)
    print(chain.results)
    assert len(chain.results.lost) >= 2, chain.results
