"""Writes the tables of docs/client-performance.md from a run's JSON file, so that the page says what was measured.

    python -m benchmarks.macro.client_page [benchmarks/results/clients-DATE-COMMIT.json]

Everything between the two marks of the page is replaced; the words around them are written by hand. Without an argument
the page is written again from the file that it names; a test checks that this changes nothing.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from itertools import product
from statistics import median
from typing import Any

from benchmarks.macro.marked_page import ROOT, MarkedPage
from benchmarks.macro.report import Results, number

OURS = "headrace"
"""How the names of Headrace's clients begin."""
WAYS = (
    # (what the way is called, the blocking client, the one for asyncio)
    ("", "headrace", "headrace.aio"),
    (", with the accelerator", "headrace + accel", "headrace.aio + accel"),
    (", lists and the accelerator", "headrace.send_many + accel", ""),
)
BEHIND = 0.995
"""A ratio that is shown as less than 1.00."""


def _cell(values: Sequence[float], *, extremes: bool) -> str:
    if not values:
        return "-"
    middle = number(median(values))
    if not extremes or len(values) == 1:
        return middle
    return f"{middle} ({number(min(values))} .. {number(max(values))})"


def _tables(results: Results, *, extremes: bool) -> list[str]:
    """One table for each set of programs that were measured together."""
    lines: list[str] = []
    head: list[str] = []
    for row, values in sorted(results.rows.items(), key=lambda item: _family(item[1])):
        names = sorted(values, key=lambda name: (not name.startswith(OURS), name))
        if names != head:
            head = names
            lines += ["", f"| case | metric | {' | '.join(names)} |"]
            lines += ["|---" * (len(names) + 2) + "|"]
        cells = " | ".join(_cell(values[name], extremes=extremes) for name in names)
        lines.append(f"| {row.case} | {row.metric} | {cells} |")
    return lines


def _family(values: Mapping[str, object]) -> tuple[int, str]:
    return -len(values), ",".join(sorted(values))


def _summary(results: Results) -> list[str]:
    """How often Headrace is ahead of each other client: the blocking twin of a blocking one, asyncio's of asyncio's."""
    lines = [
        "| beside | rows where Headrace is ahead or equal | where it is not: how many times as good |",
        "|---|---|---|",
    ]
    others = dict.fromkeys(
        name for values in results.rows.values() for name in values if not name.startswith(OURS)
    )
    for other, (way, blocking, asyncio_twin) in product(others, WAYS):
        ours = asyncio_twin if other == "aiokafka" else blocking
        ahead, behind = 0, []
        for row, values in results.rows.items():
            if other not in values or ours not in values or row.metric.startswith("broker"):
                continue
            part = median(values[ours]) / median(values[other])
            part = part if row.more_is_better else 1 / part
            if part >= BEHIND:
                ahead += 1
            else:
                behind.append(f"{row.case}, {row.metric.split(',')[0]}: {part:.2f}")
        if ahead or behind:
            count = f"{ahead} of {ahead + len(behind)}"
            lines.append(f"| {other}{way} | {count} | {'; '.join(behind) or '-'} |")
    return lines


def _where(facts: Mapping[str, Any]) -> list[str]:
    host = facts["machine"]
    versions = ", ".join(
        f"{name} {number_}" for name, number_ in facts["versions"].items() if name != "headrace"
    )
    load = ", ".join(map(str, host["load_before"]))
    where = (
        f"{host['cores']} cores ({host['cpu']}), {host['memory_gib']} GiB, Linux {host['kernel']}"
    )
    how = f"{facts['rounds']} round(s) in {facts['minutes']} minutes"
    return [
        f"Headrace {facts['commit']}, {facts['date']}; {versions}. {where}, {host['python']};",
        f"load average before: {load}. {how}; the broker shares the cores with the clients.",
    ]


def _failures(results: Results) -> list[str]:
    if not results.failures:
        return []
    return ["", "### Without a value", "", *(f"* {each}" for each in results.failures)]


def report(facts: Mapping[str, Any]) -> str:
    """A whole text: medians with their extremes."""
    results = Results.from_json(facts)
    lines = [f"# Python clients, Headrace {facts['commit']}, {facts['date']}", "", *_where(facts)]
    lines += ["Cells: median (least .. most).", "", *_summary(results)]
    lines += [*_tables(results, extremes=True), *_failures(results)]
    return "\n".join(lines) + "\n"


def tables(name: str, facts: Mapping[str, Any]) -> str:
    """What stands between the marks of the page."""
    results = Results.from_json(facts)
    every = f"[the results](../benchmarks/results/{name}.md)"
    lines = [*_where(facts), f"Medians; the least and the most of each are in {every}.", ""]
    lines += [*_summary(results), *_tables(results, extremes=False), *_failures(results)]
    return "\n".join(lines)


PAGE = MarkedPage(ROOT / "docs" / "client-performance.md", tables)


if __name__ == "__main__":
    sys.exit(PAGE.main())
