"""Begin and end a run of a benchmark: its facts, its results, and the files that it writes."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

from benchmarks.macro.compare_kafka import commit
from benchmarks.macro.marked_page import MarkedPage, Measured
from benchmarks.macro.report import Results
from benchmarks.macro.servers import machine


@dataclass
class Run:
    """The facts and results of one run."""

    begun: datetime
    facts: dict[str, Any]

    @classmethod
    def begin(cls, rounds: int, **facts: Any) -> Self:
        """Return a run with the time, the commit and the machine."""
        begun = datetime.now(UTC)
        date = begun.strftime("%Y-%m-%d")
        about = {"date": date, "commit": commit(), "rounds": rounds, "machine": machine()}
        return cls(begun, about | facts)

    def end(
        self, name: str, results: Results, shown: Measured, output: Path, page: MarkedPage | None
    ) -> None:
        """Write every value to a JSON file, the report to a file and to the terminal, and the page if there is one."""
        took = datetime.now(UTC) - self.begun
        facts = self.facts | {"minutes": round(took.total_seconds() / 60, 1)} | results.as_json()
        output.mkdir(parents=True, exist_ok=True)
        path = output / f"{name}-{facts['date']}-{facts['commit']}.json"
        path.write_text(json.dumps(facts).replace('{"preset"', '\n{"preset"') + "\n")
        text = shown.report(facts)
        path.with_suffix(".md").write_text(text)
        print(text)
        if page is not None:
            page.write(path)
