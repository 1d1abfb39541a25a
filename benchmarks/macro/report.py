"""Measurements to a table of medians, extremes and ratios."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from benchmarks.macro.servers import HEADRACE, KAFKA, median


@dataclass(frozen=True)
class Measurement:
    """One value of one round."""

    preset: str
    case: str
    metric: str
    target: str
    value: float


Results = list[Measurement]


def _number(value: float) -> str:
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.2f}" if value >= 1 else f"{value:.3f}"


def _cell(values: list[float]) -> str:
    if not values:
        return "-"
    middle = _number(median(values))
    if len(values) == 1:
        return middle
    return f"{middle} ({_number(min(values))} .. {_number(max(values))})"


def render(facts: Mapping[str, Any], results: Results) -> str:
    """A markdown text: one table for each preset; a ratio above 1 means that Headrace's number is the larger one."""
    host = facts["machine"]
    where = (
        f"{host['cores']} cores ({host['cpu']}), {host['memory_gib']} GiB, Linux {host['kernel']}"
    )
    load = ", ".join(map(str, host["load_before"]))
    rounds = f"{facts['rounds']} round(s) in {facts['minutes']} minutes"
    lines = [
        f"# Headrace {facts['commit']} and Apache Kafka {facts['kafka']}, {facts['date']}",
        "",
        f"{where}, {host['python']}; load average before: {load}. Clients run on the same cores.",
        f"{rounds}, the two brokers in turns.",
        "Cells: median (least .. most). Ratio: Headrace / Kafka.",
    ]
    for preset in dict.fromkeys(each.preset for each in results):
        lines += ["", f"## {preset}", "", facts["presets"][preset] + ".", ""]
        lines += ["| case | metric | Headrace | Kafka | ratio |", "|---|---|---|---|---|"]
        mine = [each for each in results if each.preset == preset]
        for case, metric in dict.fromkeys((each.case, each.metric) for each in mine):
            values = {
                target: [
                    each.value
                    for each in mine
                    if (each.case, each.metric, each.target) == (case, metric, target)
                ]
                for target in (HEADRACE, KAFKA)
            }
            ratio = "-"
            if all(values.values()) and median(values[KAFKA]) > 0:
                ratio = f"{median(values[HEADRACE]) / median(values[KAFKA]):.2f}"
            lines.append(
                f"| {case} | {metric} | {_cell(values[HEADRACE])} | {_cell(values[KAFKA])} | {ratio} |"
            )
    return "\n".join(lines) + "\n"
