"""Write the report of `benchmarks.macro.spark` and the tables of docs/reports/spark-performance.md from a JSON file.

    python -m benchmarks.macro.spark_page [benchmarks/results/spark-DATE-COMMIT.json]

The module replaces the text between the two marks of the page; the rest is written by hand. Without an argument it uses
the run that the page names. A test checks that this changes nothing.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from benchmarks.macro.marked_page import ROOT, Measured
from benchmarks.macro.report import HEADRACE, Results, Row, cell, load_text, machine_text, table

ONCE, PYTHON, CONNECTOR = "headrace exactly once", "headrace without accelerator", "connector"
OURS = {
    HEADRACE: "Headrace",
    ONCE: "Headrace, exactly once",
    PYTHON: "Headrace without the accelerator",
}
ARCHIVE = "archive"
ABOUT = {
    "batch read": "`spark.read`, a whole topic, to `noop`",
    "stream read": "`spark.readStream` with `availableNow`, a whole topic in several batches, to `noop`",
    "batch write": "Parquet files to a topic of four partitions; `Headrace` is at least once, as the connector is",
    "stream write": "the same as a stream, four batches",
    ARCHIVE: "`headrace archive` to a Delta table, and `spark.read` through the connector to Parquet files, both zstd",
    "latency": "from a record's creation until a `read_committed` consumer of the output has it",
}


def wanted(row: Row) -> float:
    """Return the target of the ratio to the connector: a minimum for a rate, a maximum for a cost."""
    return 2.0 if row.preset == ARCHIVE and row.more_is_better else 1.0


def missed(row: Row, part: float) -> bool:
    """Return whether a ratio misses its target, at the two digits that are shown."""
    shown = round(part, 2)
    return shown < wanted(row) if row.more_is_better else shown > wanted(row)


def ratio(values: Mapping[str, Sequence[float]], target: str) -> float | None:
    """Return the ratio of a median to the connector's; None if one is missing."""
    mine, theirs = values.get(target), values.get(CONNECTOR)
    return median(mine) / median(theirs) if mine and theirs and median(theirs) else None


def _ratio_cell(row: Row, values: Mapping[str, Sequence[float]], target: str) -> str:
    part = ratio(values, target)
    if part is None:
        return "-"
    return f"**{part:.2f}**" if missed(row, part) else f"{part:.2f}"


def _part(results: Results, part: str, *, extremes: bool) -> list[str]:
    """Return the table of one part, with a column for each side that was measured in it."""
    mine = {row: values for row, values in results.rows.items() if row.preset == part}
    targets = [name for name in OURS if any(name in values for values in mine.values())]
    head = ["case", "metric", "connector"]
    for target in targets:
        head += [OURS[target], "ratio"]
    rows = []
    for row, values in mine.items():
        cells = [row.case, row.metric, cell(values.get(CONNECTOR, ()), extremes=extremes)]
        for target in targets:
            cells += [
                cell(values.get(target, ()), extremes=extremes),
                _ratio_cell(row, values, target),
            ]
        bound = "at least" if row.more_is_better else "at most"
        rows.append([*cells, f"{bound} {wanted(row):.1f}"])
    return table([*head, "target"], rows)


def _summary(results: Results) -> list[str]:
    """Count how often the targets are met, by part and kind of metric."""
    kinds: dict[tuple[str, str, str], list[tuple[Row, float]]] = {}
    for row, values in results.rows.items():
        kind = row.metric if row.more_is_better or row.metric.startswith("CPU") else "latency"
        for target in OURS:
            part = ratio(values, target)
            if part is not None:
                kinds.setdefault((row.preset, target, kind), []).append((row, part))
    rows = []
    for (preset, target, kind), found in kinds.items():
        parts = sorted(part for _, part in found)
        met = sum(not missed(row, part) for row, part in found)
        count = f"{met} of {len(found)}"
        spread = " .. ".join(f"{part:.2f}" for part in (parts[0], median(parts), parts[-1]))
        rows.append(
            [preset, OURS[target], kind, count if met == len(found) else f"**{count}**", spread]
        )
    head = [
        "part",
        "program",
        "metric",
        "rows that meet the target",
        "ratios: minimum .. median .. maximum",
    ]
    return table(head, rows)


def _where(facts: Mapping[str, Any]) -> list[str]:
    what = (
        f"Headrace {facts['commit']}, Spark {facts['spark']}, its connector {facts['connector']}, {facts['date']}. "
        f"{machine_text(facts)}; load average before: {load_text(facts)}."
    )
    settings = "".join(f" {name}={value}." for name, value in facts["conf"].items())
    how = (
        f"{facts['scale'].capitalize()} loads, {facts['rounds']} round(s) in {facts['minutes']} minutes, in turns. "
        "A ratio is Headrace / connector; a ratio that misses its target is bold."
        f"{settings}"
    )
    return [what, how]


def _body(results: Results, heading: str, extremes: bool) -> list[str]:  # noqa: FBT001 - as `Measured` calls it
    lines = _summary(results)
    for part in dict.fromkeys(row.preset for row in results.rows):
        title = f"{part[0].upper()}{part[1:]}"
        lines += ["", f"{heading} {title}", "", f"{ABOUT[part]}.", ""]
        lines += _part(results, part, extremes=extremes)
    return lines


SHOWN = Measured("Spark beside its own Kafka connector", _where, _body)
PAGE = SHOWN.page(ROOT / "docs" / "reports" / "spark-performance.md")


if __name__ == "__main__":
    sys.exit(PAGE.main())
