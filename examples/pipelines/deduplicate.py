"""Write each event once, although its producer may send it twice.

headrace pipeline run examples/pipelines/deduplicate.py
"""

from __future__ import annotations

from pyspark.sql import DataFrame

from headrace.pipelines import pipeline, topic

EVENT = "id STRING, user STRING, at TIMESTAMP"


@pipeline(
    source=topic("raw-events", schema=EVENT, create=2),
    sink=topic("events", schema=EVENT, key="user", timestamp="at", create=2),
)
def events(raw: DataFrame) -> DataFrame:
    """Drop events whose id came within the last hour of event time."""
    return raw.withWatermark("at", "1 hour").dropDuplicatesWithinWatermark(["id"])
