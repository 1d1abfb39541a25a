"""The report at the end of the demo, as text and as JSON."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from headrace.demo.pipeline import Run
from headrace.demo.statistics import Expected, Results, WindowKey, WindowResult, worst_windows
from headrace.demo.stream import Produced, Topics

LOCAL_ZONE: Final = "America/New_York"
_NAME_WIDTH: Final = 27


@dataclass(frozen=True)
class Outcome:
    """The results and durations of a run of the demo. All `results` were compared with the input."""

    bootstrap: str
    """The address of the broker."""
    own_broker: bool
    """Whether the demo has started the broker."""
    output: Path
    """The directory of the demo."""
    topics: Topics
    first_ms: int
    """The timestamp of the first flight, in milliseconds since 1970."""
    last_ms: int
    """The timestamp of the last flight, in milliseconds since 1970."""
    expected: Expected
    """The results computed without Spark."""
    results: Results
    """The results of the pipeline."""
    airlines: Mapping[str, str]
    """The names of the airlines, by carrier code."""
    produced: Produced
    spark_start_seconds: float
    """The time that Spark took to start, in seconds."""
    runs: tuple[Run, ...]
    """The runs of the query."""
    seconds: float
    """The duration of the demo, in seconds."""

    @property
    def pipeline_seconds(self) -> float:
        """The duration of all runs of the pipeline together, in seconds."""
        return sum(run.seconds for run in self.runs)


def as_json(outcome: Outcome) -> dict[str, Any]:
    """Return the outcome with stable keys; times are ISO 8601 in UTC, delays in minutes."""
    carriers = _carriers(outcome)
    worst = worst_windows(outcome.results, [carrier for carrier, _ in carriers])
    produced, pipeline_seconds = outcome.produced, outcome.pipeline_seconds
    return {
        "verified": True,
        "records": produced.records,
        "windows": len(outcome.results),
        "first_departure": _utc(outcome.first_ms).isoformat(),
        "last_departure": _utc(outcome.last_ms).isoformat(),
        "produce": {
            "seconds": round(produced.seconds, 3),
            "records_per_second": round(produced.records / produced.seconds),
            "value_bytes": produced.value_bytes,
        },
        "pipeline": {
            "spark_start_seconds": round(outcome.spark_start_seconds, 3),
            "seconds": round(pipeline_seconds, 3),
            "rows_per_second": round(produced.records / pipeline_seconds),
            "batches": sum(run.batches for run in outcome.runs),
        },
        "carriers": [
            {
                "carrier": carrier,
                "name": outcome.airlines.get(carrier),
                **result._asdict(),
                "worst_hour": _utc(worst[carrier].start_ms).isoformat(),
                "worst_hour_mean_delay_minutes": outcome.results[worst[carrier]].mean_delay_minutes,
            }
            for carrier, result in carriers
        ],
        "parquet": str(outcome.output / "results"),
        "data": str(outcome.output / "data") if outcome.own_broker else None,
        "bootstrap": outcome.bootstrap,
        "topics": {"flights": outcome.topics.flights, "results": outcome.topics.results},
        "seconds": round(outcome.seconds, 3),
    }


def as_text(outcome: Outcome) -> str:
    """Return a table of the carriers, the most delayed first, with the measurements and the paths of the results."""
    produced, pipeline_seconds = outcome.produced, outcome.pipeline_seconds
    rate = produced.records / produced.seconds
    megabytes = produced.value_bytes / produced.seconds / 1e6
    lines = [
        *_table(outcome),
        "",
        (
            f"Checked: {produced.records:,} flights in, and in both places {len(outcome.results):,} windows "
            "that count each of them once."
        ),
        f"Produced in {produced.seconds:.1f} s: {rate:,.0f} records/s, {megabytes:.1f} MB/s.",
        (
            f"Pipeline in {pipeline_seconds:.1f} s: {produced.records / pipeline_seconds:,.0f} rows/s "
            f"(besides {outcome.spark_start_seconds:.1f} s to start Spark)."
        ),
        f"All in {outcome.seconds:.0f} s.",
        "",
        f"Parquet files: {outcome.output / 'results'}",
    ]
    if outcome.own_broker:
        data = outcome.output / "data"
        lines += [
            f"Topics {outcome.topics.flights} and {outcome.topics.results}: headrace serve --data {data}",
            f"               then: headrace consume {outcome.topics.results} --offset start",
        ]
    else:
        lines.append(
            f"Topics {outcome.topics.flights} and {outcome.topics.results} on {outcome.bootstrap}"
        )
    return "\n".join(lines)


def _table(outcome: Outcome) -> list[str]:
    carriers = _carriers(outcome)
    worst = worst_windows(outcome.results, [carrier for carrier, _ in carriers])
    zone, zone_name = _zone()
    first, last = (
        dt.datetime.fromtimestamp(ms / 1000, zone) for ms in (outcome.first_ms, outcome.last_ms)
    )
    title = (
        f"Delays of departures from New York, {first:%d %b %Y} to {last:%d %b %Y}, by carrier "
        f"(hours: {zone_name})"
    )
    header = (
        f"{'Carrier':<{_NAME_WIDTH + 3}} {'Flights':>8} {'Cancelled':>9} {'Mean delay':>10} "
        f"{'Late':>6} {'Longest':>8}  Worst hour"
    )
    lines = [title, "", header, "-" * (len(header) + 22)]
    for carrier, result in carriers:
        key = worst[carrier]
        lines.append(
            f"{carrier:<2} {outcome.airlines.get(carrier, '')[:_NAME_WIDTH]:<{_NAME_WIDTH}} {result.flights:>8,} "
            f"{result.cancelled / result.flights:>9.1%} {_minutes(result.mean_delay_minutes):>10} "
            f"{_share(result.late_share):>6} {_minutes(result.max_delay_minutes, 0):>8}  "
            f"{_worst(key, outcome.results[key], zone)}"
        )
    lines += ["", "Late: more than 15 minutes. Delays are of the flights that left."]
    return lines


def _carriers(outcome: Outcome) -> Sequence[tuple[str, WindowResult]]:
    """Return the carriers' totals, the highest mean delay first."""
    totals = [(carrier, tally.result()) for carrier, tally in outcome.expected.carriers.items()]
    return sorted(totals, key=lambda item: (-(item[1].mean_delay_minutes or 0), item[0]))


def _worst(key: WindowKey, result: WindowResult, zone: dt.tzinfo) -> str:
    hour = dt.datetime.fromtimestamp(key.start_ms / 1000, zone)
    return f"{hour:%d %b %H}h {_minutes(result.mean_delay_minutes, 0):>7}, {result.flights} flights"


def _minutes(value: float | None, digits: int = 1) -> str:
    return "-" if value is None else f"{value:.{digits}f} min"


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.0%}"


def _zone() -> tuple[dt.tzinfo, str]:
    """Return New York's time zone, or UTC on a machine without a time zone database."""
    try:
        return ZoneInfo(LOCAL_ZONE), LOCAL_ZONE
    except ZoneInfoNotFoundError:
        return dt.UTC, "UTC"


def _utc(ms: int) -> dt.datetime:
    return dt.datetime.fromtimestamp(ms / 1000, dt.UTC)
