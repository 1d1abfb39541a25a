"""A page of the documentation of which a part is what was measured: between two marks, replaced as a whole.

The words around the marks are written by hand. The page names the run that it shows, so it can be written again from
that run's JSON file; a test checks that this changes nothing.
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
    """One page."""

    path: Path
    tables: Callable[[str, Mapping[str, Any]], str]
    """What stands between the marks, from a run's name and its facts."""

    def source(self) -> Path:
        """The run that the page shows.

        Raises:
            ValueError: It names none.
        """
        found = _SOURCE.search(self.path.read_text())
        if not found:
            raise ValueError(f"{self.path.name} names no file of benchmarks/results")
        return RESULTS / f"{found.group(1)}.json"

    def rendered(self, run: Path) -> str:
        """The page with the tables of a run."""
        before, rest = self.path.read_text().split(BEGIN)
        _, after = rest.split(END)
        shown = self.tables(run.stem, json.loads(run.read_text()))
        return f"{before}{BEGIN}\n\n{shown}\n\n{END}{after}"

    def write(self, run: Path) -> None:
        """Writes the page from a run's JSON file."""
        self.path.write_text(self.rendered(run))

    def main(self) -> int:
        """Writes the page from the run that the command line names, or else from its own."""
        self.write(Path(sys.argv[1]) if len(sys.argv) > 1 else self.source())
        return 0


@dataclass(frozen=True)
class Measured:
    """How a run is shown: in a text of its own, and between the marks of a page."""

    title: str
    where: Callable[[Mapping[str, Any]], list[str]]
    """Where and how it was measured, from the facts."""
    body: Callable[[Results, str, bool], list[str]]
    """The tables, from the results, what headings begin with, and whether cells have the least and the most."""

    def report(self, facts: Mapping[str, Any]) -> str:
        """A text of its own."""
        title = f"# {self.title}, Headrace {facts['commit']}, {facts['date']}"
        lines = [title, "", *self.where(facts), "Cells: median (least .. most).", ""]
        return "\n".join([*lines, *self._body(facts, "##", extremes=True)]) + "\n"

    def tables(self, name: str, facts: Mapping[str, Any]) -> str:
        """What stands between the marks of a page."""
        every = f"[the results](../../benchmarks/results/{name}.md)"
        lines = [*self.where(facts), f"Medians; the least and the most of each are in {every}.", ""]
        return "\n".join([*lines, *self._body(facts, "###", extremes=False)])

    def page(self, path: Path) -> MarkedPage:
        """The page at a path."""
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
