"""Write the tables of docs/reports/kinesis-performance.md from the JSON file of a run.

python -m benchmarks.macro.kinesis_page [benchmarks/results/kinesis-DATE-COMMIT.json]
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any, Final

from benchmarks.macro.kinesis_programs import ASYNC_KINESIS, HEADRACE
from benchmarks.macro.marked_page import ROOT, Measured
from benchmarks.macro.report import Results, cell, machine_text, table

NEVER: Final = -1.0
"""The value for an event that did not happen in time."""


def _cell(values: Sequence[float], *, extremes: bool) -> str:
    if NEVER in values:
        return f"never within a minute ({values.count(NEVER)} of {len(values)} rounds)"
    return cell(values, extremes=extremes)


def _rows(results: Results, _: str, extremes: bool) -> list[str]:  # noqa: FBT001 - as `Measured` calls it
    rows = [
        [row.case, row.metric]
        + [_cell(values.get(name, []), extremes=extremes) for name in (HEADRACE, ASYNC_KINESIS)]
        for row, values in results.rows.items()
    ]
    return table(["scenario", "metric", HEADRACE, ASYNC_KINESIS], rows)


def _where(facts: Mapping[str, Any]) -> list[str]:
    return [
        f"Headrace {facts['commit']}, {facts['date']}; {machine_text(facts)}.",
        f"{facts['rounds']} round(s) in {facts['minutes']} minutes; the fake of AWS shares the cores.",
    ]


SHOWN: Final = Measured("Consumers of Kinesis", _where, _rows)
PAGE: Final = SHOWN.page(ROOT / "docs" / "reports" / "kinesis-performance.md")


if __name__ == "__main__":
    sys.exit(PAGE.main())
