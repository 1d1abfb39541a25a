"""Write the tables of docs/reports/client-performance.md from the JSON file of a run.

    python -m benchmarks.macro.client_page [benchmarks/results/clients-DATE-COMMIT.json]

The module replaces the text between the two marks of the page; the rest is written by hand. Without an argument it uses
the run that the page names. A test checks that this changes nothing.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from itertools import product
from statistics import median
from typing import Any

from benchmarks.macro.marked_page import ROOT, Measured
from benchmarks.macro.report import Results, cell, load_text, machine_text

OURS = "headrace"
"""The prefix of the names of Headrace's clients."""
WAYS = (
    # (name of the way to send, blocking client, asyncio client)
    ("", "headrace", "headrace.aio"),
    (", with the accelerator", "headrace + accel", "headrace.aio + accel"),
    (", lists and the accelerator", "headrace.send_many + accel", ""),
)
BEHIND = 0.995
"""The ratio below which a cell shows less than 1.00."""


def _tables(results: Results, *, extremes: bool) -> list[str]:
    """Return one table for each set of programs that were measured together."""
    lines: list[str] = []
    head: list[str] = []
    for row, values in sorted(results.rows.items(), key=lambda item: _family(item[1])):
        names = sorted(values, key=lambda name: (not name.startswith(OURS), name))
        if names != head:
            head = names
            lines += ["", f"| case | metric | {' | '.join(names)} |"]
            lines += ["|---" * (len(names) + 2) + "|"]
        cells = " | ".join(cell(values[name], extremes=extremes) for name in names)
        lines.append(f"| {row.case} | {row.metric} | {cells} |")
    return lines


def _family(values: Mapping[str, object]) -> tuple[int, str]:
    return -len(values), ",".join(sorted(values))


def _summary(results: Results) -> list[str]:
    """Count how often Headrace is faster than each other client, blocking and asyncio clients separately."""
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
    versions = ", ".join(
        f"{name} {number_}" for name, number_ in facts["versions"].items() if name != "headrace"
    )
    how = f"{facts['rounds']} round(s) in {facts['minutes']} minutes"
    return [
        f"Headrace {facts['commit']}, {facts['date']}; {versions}. {machine_text(facts)};",
        f"load average before: {load_text(facts)}. {how}; the broker shares the cores with the clients.",
    ]


def _body(results: Results, _: str, extremes: bool) -> list[str]:  # noqa: FBT001 - as `Measured` calls it
    return [*_summary(results), *_tables(results, extremes=extremes)]


SHOWN = Measured("Python clients", _where, _body)
PAGE = SHOWN.page(ROOT / "docs" / "reports" / "client-performance.md")


if __name__ == "__main__":
    sys.exit(PAGE.main())
