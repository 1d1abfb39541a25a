"""Write the tables of docs/reports/performance.md from the JSON file of a run.

    python -m benchmarks.macro.page [benchmarks/results/DATE-COMMIT.json]

The module replaces the text between the two marks of the page; the rest is written by hand. Without an argument it uses
the run that the page names. A test checks that this changes nothing.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from benchmarks.macro.marked_page import ROOT, MarkedPage
from benchmarks.macro.report import (
    HEADRACE,
    KAFKA,
    NAMES,
    Results,
    Row,
    header,
    number,
    ratio,
    table,
)

KINDS: Mapping[str, tuple[str, str]] = {
    # kind: (pattern of the metric, target)
    "throughput": (r"/s$", "at least 1.0"),
    "p50 latency": (r"p50 ms$", "at most 1.0"),
    "p99 latency": (r"p99 ms$", "at most 1.0"),
    "p99.9 latency": (r"p99\.9 ms$", "at most 1.0"),
    "broker CPU": (r"^broker CPU", "at most 1.0"),
    "time to create topics and join": (r"^s until", "at most 1.0"),
    "death to successor": (r"^s from death", "at most 1.0"),
    "stalled partitions": (r"^% of partition time", "at most 1.0"),
    "start-up": (r"^s to the first", "at most 0.1"),
    "memory": (r"^MB", "at most 0.2"),
}


SUMMARY_HEAD = (
    "metric",
    "target",
    "rows that meet the target",
    "ratios: minimum .. median .. maximum",
)


def _shown(row: Row, values: Mapping[str, Sequence[float]]) -> list[str]:
    """Return Headrace's median, Kafka's median and their ratio, in bold if the ratio misses its target."""
    mine, theirs, part = values.get(HEADRACE), values.get(KAFKA), ratio(values)
    cells = [number(median(each)) if each else "-" for each in (mine, theirs)]
    text = "" if part is None else f"{part:.2f}"
    return [*cells, f"**{text}**" if part is not None and row.missed(part) else text]


def _compared(results: Results) -> dict[Row, float]:
    ratios = {row: ratio(values) for row, values in results.rows.items()}
    return {row: part for row, part in ratios.items() if part is not None}


def _summary(results: Results) -> list[str]:
    compared, rows = _compared(results), []
    for kind, (pattern, target) in KINDS.items():
        mine = {row: part for row, part in compared.items() if re.search(pattern, row.metric)}
        if not mine:
            continue
        parts = sorted(mine.values())
        met = sum(not row.missed(part) for row, part in mine.items())
        spread = f"{parts[0]:.2f} .. {median(parts):.2f} .. {parts[-1]:.2f}"
        count = f"{met} of {len(mine)}"
        rows.append([kind, target, count if met == len(mine) else f"**{count}**", spread])
    return table(SUMMARY_HEAD, rows)


def _every_row(results: Results, presets: Sequence[str]) -> list[str]:
    shared: dict[tuple[str, str], dict[str, Row]] = {}
    for row in results.rows:
        if KAFKA in results.rows[row] or HEADRACE in results.rows[row]:
            shared.setdefault((row.case, row.metric), {})[row.preset] = row
    rows = []
    for (case, metric), by_preset in shared.items():
        cells: list[str] = []
        for preset in presets:
            here = by_preset.get(preset)
            cells += ["", "", ""] if here is None else _shown(here, results.rows[here])
        rows.append([case, metric, *cells])
    head = ["case", "metric"]
    for preset in presets:
        head += [f"{preset}: Headrace", "Kafka", "ratio"]
    return table(head, rows)


def _orientation(results: Results) -> list[str]:
    targets = [name for name in NAMES if name not in (HEADRACE, KAFKA)]
    rows = [
        [row.preset, row.case, row.metric]
        + [
            number(median(values[name])) if name in values else "-"
            for name in (HEADRACE, KAFKA, *targets)
        ]
        for row, values in results.rows.items()
        if any(name in values for name in targets)
    ]
    return table(["preset", "case", "metric", *NAMES.values()], rows) if rows else []


def tables(name: str, facts: Mapping[str, Any]) -> str:
    """Return the text between the marks of the page."""
    results = Results.from_json(facts)
    presets = list(dict.fromkeys(row.preset for row in results.rows))
    where, how = header(facts)
    every = f"[the results](../../benchmarks/results/{name}.md)"
    lines = [
        f"Headrace {facts['commit']} and Apache Kafka {facts['kafka']}, {facts['date']}. {where}",
        f"{how} Each cell is a median; {every} also list minimums and maximums.",
        "",
        *(f"* `{preset}`: {facts['presets'][preset]}." for preset in presets),
        "",
        "A ratio is Headrace / Kafka; a ratio that misses its target is bold.",
        "",
        *_summary(results),
        "",
        "### Every row",
        "",
        *_every_row(results, presets),
    ]
    if other := _orientation(results):
        lines += ["", "### Beside other brokers", "", *other]
    if results.failures:
        lines += ["", "### Without a value", "", *(f"* {each}" for each in results.failures)]
    return "\n".join(lines)


PAGE = MarkedPage(ROOT / "docs" / "reports" / "performance.md", tables)


if __name__ == "__main__":
    sys.exit(PAGE.main())
