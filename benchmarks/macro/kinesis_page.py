"""Writes the tables of docs/kinesis-performance.md from a run's JSON file, so that the page says what was measured.

python -m benchmarks.macro.kinesis_page [benchmarks/results/kinesis-DATE-COMMIT.json]
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any, Final

from benchmarks.macro.kinesis_programs import ASYNC_KINESIS, HEADRACE
from benchmarks.macro.marked_page import ROOT, MarkedPage
from benchmarks.macro.report import Results, number

NEVER: Final = -1.0
"""What stands for a moment that did not come while it was waited for."""


def _cell(values: Sequence[float], *, extremes: bool) -> str:
    if not values:
        return "-"
    if NEVER in values:
        return f"never within a minute ({values.count(NEVER)} of {len(values)} rounds)"
    middle = number(median(values))
    if not extremes or len(values) == 1:
        return middle
    return f"{middle} ({number(min(values))} .. {number(max(values))})"


def _rows(results: Results, *, extremes: bool) -> list[str]:
    lines = [f"| scenario | metric | {HEADRACE} | {ASYNC_KINESIS} |", "|---|---|---|---|"]
    for row, values in results.rows.items():
        cells = [
            _cell(values.get(name, []), extremes=extremes) for name in (HEADRACE, ASYNC_KINESIS)
        ]
        lines.append(f"| {row.case} | {row.metric} | {' | '.join(cells)} |")
    return lines


def _where(facts: Mapping[str, Any]) -> list[str]:
    host = facts["machine"]
    where = (
        f"{host['cores']} cores ({host['cpu']}), {host['memory_gib']} GiB, Linux {host['kernel']}"
    )
    return [
        f"Headrace {facts['commit']}, {facts['date']}; {where}, {host['python']}.",
        f"{facts['rounds']} round(s) in {facts['minutes']} minutes; the fake of AWS shares the cores.",
    ]


def report(facts: Mapping[str, Any]) -> str:
    """A whole text: medians with their extremes."""
    results = Results.from_json(facts)
    lines = [
        f"# Consumers of Kinesis, Headrace {facts['commit']}, {facts['date']}",
        "",
        *_where(facts),
    ]
    lines += ["Cells: median (least .. most).", "", *_rows(results, extremes=True)]
    lines += ["", *(f"* without a value: {each}" for each in results.failures)]
    return "\n".join(lines).rstrip() + "\n"


def tables(name: str, facts: Mapping[str, Any]) -> str:
    """What stands between the marks of the page."""
    results = Results.from_json(facts)
    every = f"[the results](../benchmarks/results/{name}.md)"
    lines = [*_where(facts), f"Medians; the least and the most of each are in {every}.", ""]
    lines += _rows(results, extremes=False)
    lines += ["", *(f"* without a value: {each}" for each in results.failures)]
    return "\n".join(lines).rstrip()


PAGE: Final = MarkedPage(ROOT / "docs" / "kinesis-performance.md", tables)


if __name__ == "__main__":
    sys.exit(PAGE.main())
