"""Write the part of a documentation page that comes from a measurement: the text between two marks.

The rest of the page is written by hand. The page names the run that it shows, so it can be written again from the JSON
file of that run. A test checks that this changes nothing.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.macro.report import Results

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "benchmarks" / "results"
BEGIN, END = "<!-- measured: begin -->", "<!-- measured: end -->"
_SOURCE = re.compile(r"\(\.\./\.\./benchmarks/results/([^)]+)\.md\)")


@dataclass(frozen=True)
class MarkedPage:
    """A page with two marks, and the function that writes the text between them."""

    path: Path
    tables: Callable[[str, Mapping[str, Any]], str]
    """The function that returns the text between the marks, from the name and the facts of a run."""

    def source(self) -> Path:
        """Return the file of the run that the page shows.

        Raises:
            ValueError: The page names no run.
        """
        found = _SOURCE.search(self.path.read_text())
        if not found:
            raise ValueError(f"{self.path.name} names no file of benchmarks/results")
        return RESULTS / f"{found.group(1)}.json"

    def rendered(self, run: Path) -> str:
        """Return the page with the tables of a run."""
        before, rest = self.path.read_text().split(BEGIN)
        _, after = rest.split(END)
        shown = self.tables(run.stem, json.loads(run.read_text()))
        return f"{before}{BEGIN}\n\n{shown}\n\n{END}{after}"

    def write(self, run: Path) -> None:
        """Write the page from the JSON file of a run."""
        self.path.write_text(self.rendered(run))

    def main(self) -> int:
        """Write the page from the run in the command line, or from the run that the page names."""
        self.write(Path(sys.argv[1]) if len(sys.argv) > 1 else self.source())
        return 0


@dataclass(frozen=True)
class Measured:
    """The functions that present a run in a report and on a page."""

    title: str
    where: Callable[[Mapping[str, Any]], list[str]]
    """The function that describes the machine and the settings, from the facts."""
    body: Callable[[Results, str, bool], list[str]]
    """The function that returns the tables: from results, the prefix of headings, and whether to show extremes."""

    def report(self, facts: Mapping[str, Any]) -> str:
        """Return the report of a run."""
        title = f"# {self.title}, Headrace {facts['commit']}, {facts['date']}"
        lines = [title, "", *self.where(facts), "Cells: median (minimum .. maximum).", ""]
        return "\n".join([*lines, *self._body(facts, "##", extremes=True)]) + "\n"

    def tables(self, name: str, facts: Mapping[str, Any]) -> str:
        """Return the text between the marks of a page."""
        every = f"[the results](../../benchmarks/results/{name}.md)"
        lines = [
            *self.where(facts),
            f"Each cell is a median; {every} also list minimums and maximums.",
            "",
        ]
        return "\n".join([*lines, *self._body(facts, "###", extremes=False)])

    def page(self, path: Path) -> MarkedPage:
        """Return the page at a path."""
        return MarkedPage(path, self.tables)

    def _body(self, facts: Mapping[str, Any], heading: str, *, extremes: bool) -> list[str]:
        results = Results.from_json(facts)
        lines = self.body(results, heading, extremes)
        if results.failures:
            lines += [
                "",
                f"{heading} Without a value",
                "",
                *(f"* {one}" for one in results.failures),
            ]
        return lines
