"""Events of which a producer sends some twice, each once.

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
    """An id is remembered for an hour of the events' own time."""
    return raw.withWatermark("at", "1 hour").dropDuplicatesWithinWatermark(["id"])
