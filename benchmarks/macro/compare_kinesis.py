"""Compare Headrace's Kinesis consumer with async-kinesis, in one run on one fake of Kinesis and DynamoDB.

    python -m benchmarks.macro.compare_kinesis --peer PYTHON [--quick] [--rounds N] [--rows TEXT] [--page]

PYTHON is the interpreter of an environment with `async-kinesis[dynamodb]`, which needs its own version of aiobotocore.
Each consumer is a process. Both have leases of ten seconds; all other settings are the defaults. The result is a table
of medians with minimum and maximum, and a JSON file. `--page` also writes docs/reports/kinesis-performance.md.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from functools import partial
from itertools import count
from pathlib import Path

from benchmarks.macro import kinesis_page, kinesis_scenarios
from benchmarks.macro.kinesis_bench import Aws, Bench
from benchmarks.macro.kinesis_page import NEVER
from benchmarks.macro.kinesis_programs import ASYNC_KINESIS, HEADRACE
from benchmarks.macro.kinesis_scenarios import SHARDS, Figures
from benchmarks.macro.marked_page import RESULTS
from benchmarks.macro.report import Results, Row
from benchmarks.macro.runs import Run

LIBRARIES = (HEADRACE, ASYNC_KINESIS)
Scenario = tuple[str, int, bool, Callable[[Bench], Figures]]


def scenarios(*, quick: bool) -> list[Scenario]:
    """Return the scenarios: name, number of shards, whether AWS's limits are on, and the function that runs it."""
    records, seconds = (20_000, 10.0) if quick else (200_000, 30.0)
    run = kinesis_scenarios
    return [
        ("as fast as it goes", SHARDS, False, partial(run.throughput, records=records)),
        ("nothing comes", SHARDS, True, partial(run.calls, seconds=seconds)),
        ("200 records/s", SHARDS, True, partial(run.calls, seconds=seconds, rate=200)),
        ("one hot shard of eight", 8, True, partial(run.hot_shard, shards=8)),
        ("a consumer joins", SHARDS, True, run.join),
        ("a consumer is killed", SHARDS, True, run.kill),
        ("a consumer leaves", SHARDS, True, run.leave),
        ("two shards are merged", 2, False, run.merge),
        ("a closed shard, three starts", 1, True, run.ended_shard),
        ("a handler pauses for 40 s", 1, True, run.pause),
        ("DynamoDB throttles for a moment", SHARDS, True, run.failed_heartbeat),
    ]


def main() -> int:
    """Run the comparison and write its results."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--peer", required=True, help="a Python that has async-kinesis[dynamodb]")
    parser.add_argument("--quick", action="store_true", help="one small round, for a first look")
    parser.add_argument("--rounds", type=int, help="rounds instead of three, or one if quick")
    parser.add_argument("--rows", default="", help="only scenarios with this text in their name")
    parser.add_argument("--library", choices=LIBRARIES, help="only this one")
    parser.add_argument("--output", type=Path, default=RESULTS, help="where the results go")
    parser.add_argument("--page", action="store_true", help="write the page's tables too")
    arguments = parser.parse_args()
    rounds = arguments.rounds or (1 if arguments.quick else 3)
    told, results, names = Run.begin(rounds), Results(), count()
    for turn in range(rounds):
        libraries = LIBRARIES if turn % 2 == 0 else LIBRARIES[::-1]
        for name, shards, limits, run in scenarios(quick=arguments.quick):
            for library in libraries:
                if arguments.rows not in name or arguments.library not in {None, library}:
                    continue
                aws = Aws(limits=limits)
                bench = Bench(aws, library, arguments.peer, shards, names)
                try:
                    figures = run(bench)
                except Exception as error:  # noqa: BLE001 - it ends its row, not the run
                    results.fail(f"{name}, {library}: {error!r}"[:300])
                else:
                    for metric, value in figures.items():
                        results.note(
                            Row("kinesis", name, metric), library, NEVER if value is None else value
                        )
                    print(f"{name}, {library}: {dict(figures)}", file=sys.stderr)
                finally:
                    bench.close()
                    aws.close()
    page = kinesis_page.PAGE if arguments.page else None
    told.end("kinesis", results, kinesis_page.SHOWN, arguments.output, page)
    return 0


if __name__ == "__main__":
    sys.exit(main())
