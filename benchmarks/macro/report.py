"""Store measurements, and write them as JSON and as tables of medians, extremes and ratios."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any, Self

HEADRACE, KAFKA = "headrace", "kafka"
NAMES = {HEADRACE: "Headrace", KAFKA: "Kafka", "nats": "NATS", "redis": "Redis"}

# Targets other than 1, as the ratio of the medians: a maximum for costs, a minimum for rates.
WANTED = {"s to the first acknowledgement": 0.1, "MB resident": 0.2}


@dataclass(frozen=True, order=True)
class Row:
    """The preset, the case and the metric of a measurement."""

    preset: str
    case: str
    metric: str

    @property
    def more_is_better(self) -> bool:
        """Return whether the metric is a rate."""
        return self.metric.endswith("/s")

    @property
    def wanted(self) -> float:
        """Return the target of the ratio to Kafka: a minimum for a rate, a maximum for a cost."""
        return next((x for name, x in WANTED.items() if self.metric.startswith(name)), 1.0)

    def missed(self, ratio: float) -> bool:
        """Return whether a ratio misses its target, at the two digits that are shown."""
        shown = round(ratio, 2)
        return shown < self.wanted if self.more_is_better else shown > self.wanted


@dataclass
class Results:
    """All values of a run, in the order in which the rows first appeared."""

    rows: dict[Row, dict[str, list[float]]] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)

    def note(self, row: Row, target: str, value: float) -> None:
        """Store the value of one round."""
        self.rows.setdefault(row, {}).setdefault(target, []).append(value)

    def fail(self, what: str) -> None:
        """Store the reason why a value is missing."""
        self.failures.append(what)

    def targets(self, preset: str) -> list[str]:
        """Return the targets that have values in a preset."""
        found = {
            name for row, values in self.rows.items() if row.preset == preset for name in values
        }
        return [name for name in NAMES if name in found]

    def as_json(self) -> dict[str, Any]:
        """Return all values in a form for a JSON file.

        Raises:
            ValueError: Nothing was measured, so a page would lose its values.
        """
        if not self.rows and not self.failures:
            raise ValueError("nothing was measured: no case has the text of --rows in its name")
        rows = [{**vars(row), "values": values} for row, values in self.rows.items()]
        return {"failures": self.failures, "rows": rows}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """Return the results from the data that `as_json` returned."""
        results = cls(failures=list(data["failures"]))
        for each in data["rows"]:
            row = Row(each["preset"], each["case"], each["metric"])
            results.rows[row] = {name: list(values) for name, values in each["values"].items()}
        return results


def ratio(values: Mapping[str, Sequence[float]]) -> float | None:
    """Return the ratio of Headrace's median to Kafka's; None if one is missing."""
    mine, theirs = values.get(HEADRACE), values.get(KAFKA)
    if not mine or not theirs or not median(theirs):
        return None
    return median(mine) / median(theirs)


def number(value: float) -> str:
    """Return a number with three significant digits."""
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.2f}" if value >= 1 else f"{value:.3f}"


def cell(values: Sequence[float], *, extremes: bool = True) -> str:
    """Return a median, with minimum and maximum if there are several values."""
    if not values:
        return "-"
    middle = number(median(values))
    if not extremes or len(values) == 1:
        return middle
    return f"{middle} ({number(min(values))} .. {number(max(values))})"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the lines of a Markdown table."""
    return [f"| {' | '.join(cells)} |" for cells in (head, ["---"] * len(head), *rows)]


def machine_text(facts: Mapping[str, Any]) -> str:
    """Return a sentence about the machine and the software of a run."""
    host = facts["machine"]
    return f"{host['cores']} cores ({host['cpu']}), {host['memory_gib']} GiB, Linux {host['kernel']}, {host['python']}"


def load_text(facts: Mapping[str, Any]) -> str:
    """Return a sentence about the load of the machine before the run."""
    return ", ".join(map(str, facts["machine"]["load_before"]))


def header(facts: Mapping[str, Any]) -> list[str]:
    """Return the lines that say where and how the run was measured."""
    rounds = f"{facts['rounds']} round(s) in {facts['minutes']} minutes"
    peers = [f" {NAMES[name]}: {text}." for name, text in facts["peers"].items()]
    return [
        f"{machine_text(facts)}; load average before: {load_text(facts)}. Clients run on the same cores.",
        f"{rounds}, brokers in turns.{''.join(peers)}",
    ]


def render(facts: Mapping[str, Any], results: Results) -> str:
    """Return Markdown with one table for each preset. A ratio above 1 means that Headrace's number is larger."""
    title = f"# Headrace {facts['commit']} and Apache Kafka {facts['kafka']}, {facts['date']}"
    lines = [title, "", *header(facts)]
    lines += ["Cells: median (minimum .. maximum). Ratio: Headrace / Kafka."]
    for preset in dict.fromkeys(row.preset for row in results.rows):
        lines += ["", f"## {preset}", "", facts["presets"][preset] + ".", ""]
        targets = results.targets(preset)
        names = " | ".join(NAMES[name] for name in targets)
        lines += [f"| case | metric | {names} | ratio |", "|---" * (len(targets) + 3) + "|"]
        for row, values in results.rows.items():
            if row.preset == preset:
                cells = " | ".join(cell(values.get(name, ())) for name in targets)
                part = ratio(values)
                shown = "-" if part is None else f"{part:.2f}"
                lines.append(f"| {row.case} | {row.metric} | {cells} | {shown} |")
    if results.failures:
        lines += ["", "## Without a value", "", *(f"* {each}" for each in results.failures)]
    return "\n".join(lines) + "\n"
