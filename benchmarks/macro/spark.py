"""Compare Headrace's Spark source, sink and archive with Spark's own Kafka connector, on one Headrace broker.

    python -m benchmarks.macro.spark [--quick] [--rounds N] [--rows PART] [--conf KEY=VALUE] [--page]

One Spark session has both. Each load goes to one and then to the other, and the order changes with each round. Before a
load is measured, it runs once with less data. A second session of the round, whose Python workers have no accelerator,
measures Headrace's reads again.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks.macro.compare_kafka import RESULTS
from benchmarks.macro.report import Results
from benchmarks.macro.runs import Run
from benchmarks.macro.spark_inputs import FULL, QUICK, Inputs, make_inputs
from benchmarks.macro.spark_loads import FAILURES, PARTS, Loads
from benchmarks.macro.spark_page import PAGE, SHOWN
from benchmarks.macro.spark_session import Meter, session
from headrace.errors import ConfigError
from headrace.spark.java import check_java
from tests.fixtures.spark_connector import ConnectorUnavailableError, connector_jars
from tests.fixtures.targets import HeadraceServer

WARM_LATENCY_S = 1


def run_round(
    number: int, server: HeadraceServer, inputs: list[Inputs], arguments: Any, results: Results
) -> None:
    """Run both sessions of a round; `inputs` are those for the warm-up and those for the measurement."""
    backwards = bool(number % 2)
    sessions = {
        True: arguments.rows,
        False: [part for part in arguments.rows if part in inputs[1].scale.plain],
    }
    for accelerated in sorted(sessions, reverse=not backwards):
        if not sessions[accelerated]:
            continue
        scratch = Path(tempfile.mkdtemp(prefix="headrace-bench-"))
        try:
            with (
                session(
                    scratch, arguments.jars, dict(arguments.conf), accelerated=accelerated
                ) as spark,
                Meter(spark) as meter,
            ):
                for part in sessions[accelerated]:
                    begun = time.monotonic()
                    # Directly before the measurement: Spark ends Python workers that are idle for a minute.
                    for warm, each in zip((True, False), inputs, strict=True):
                        Loads(
                            spark,
                            meter,
                            server.bootstrap,
                            scratch,
                            each,
                            Results() if warm else results,
                            WARM_LATENCY_S if warm else each.scale.latency_s,
                            accelerated,
                            backwards,
                        ).run(part)
                    took = f"{part}: {time.monotonic() - begun:.0f} s"
                    without = "" if accelerated else ", without the accelerator"
                    print(f"  {took}{without}", file=sys.stderr, flush=True)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one small round, for a first look")
    parser.add_argument("--rounds", type=int, help="rounds instead of three, or one if quick")
    parser.add_argument("--rows", choices=PARTS, action="append", help="only this part")
    parser.add_argument(
        "--conf",
        action="append",
        default=[],
        type=lambda text: text.split("=", 1),
        metavar="KEY=VALUE",
        help="a setting of Spark, beside those of spark_session.py",
    )
    parser.add_argument(
        "--page", action="store_true", help="write docs/reports/spark-performance.md as well"
    )
    parser.add_argument("--output", type=Path, default=RESULTS, help="where the results go")
    arguments = parser.parse_args()
    arguments.rows = [part for part in PARTS if not arguments.rows or part in arguments.rows]
    arguments.rounds = arguments.rounds or (1 if arguments.quick else 3)
    return arguments


def measure(arguments: argparse.Namespace) -> Results:
    """Run all rounds on one broker."""
    results = Results()
    scratch = Path(tempfile.mkdtemp(prefix="headrace-bench-"))
    server = HeadraceServer(scratch / "broker", settings={}, arguments=["--durability", "os"])
    try:
        server.start()
        print("filling topics ...", file=sys.stderr, flush=True)
        inputs = [make_inputs(server.bootstrap, scratch, QUICK)]
        inputs.append(
            inputs[0] if arguments.quick else make_inputs(server.bootstrap, scratch, FULL)
        )
        for number in range(arguments.rounds):
            print(f"round {number + 1} ...", file=sys.stderr, flush=True)
            try:
                run_round(number, server, inputs, arguments, results)
            except FAILURES as error:  # earlier measurements are kept
                results.fail(f"round {number + 1} did not end: {error}"[:300])
                print(f"  {error}", file=sys.stderr, flush=True)
    finally:
        server.stop()
        shutil.rmtree(scratch, ignore_errors=True)
    return results


def main() -> int:
    """Run the comparison and write its results."""
    arguments = _arguments()
    try:
        check_java()
        arguments.jars = connector_jars()
    except (ConfigError, ConnectorUnavailableError) as error:
        print(f"cannot compare: {error}", file=sys.stderr)
        return 1
    (connector,) = [each for each in arguments.jars if each.name.startswith("spark-sql-kafka")]
    run = Run.begin(
        arguments.rounds,
        spark=version("pyspark"),
        connector=connector.stem.rsplit("-", 1)[1],
        scale=QUICK.name if arguments.quick else FULL.name,
        conf=dict(arguments.conf),
    )
    name = "spark-quick" if arguments.quick else "spark"
    page = PAGE if arguments.page else None
    run.end(name, measure(arguments), SHOWN, arguments.output, page)
    return 0


if __name__ == "__main__":
    sys.exit(main())
