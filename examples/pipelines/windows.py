"""Compute the delays for each carrier and quarter of an hour. Each window is written once, when it has ended.

headrace pipeline run examples/pipelines/windows.py
"""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from headrace.pipelines import pipeline, topic


@pipeline(
    source=topic("flights", schema="carrier STRING, delay INT, at TIMESTAMP", create=2),
    sink=topic("delays", key="carrier", timestamp="until", create=2),
)
def delays(flights: DataFrame) -> DataFrame:
    """Count flights and average delays; flights that arrive more than ten minutes late are left out."""
    return (
        flights.withWatermark("at", "10 minutes")
        .groupBy(f.window("at", "15 minutes"), "carrier")
        .agg(f.count("*").alias("flights"), f.avg("delay").alias("delay"))
        .select("carrier", "flights", "delay", f.col("window.end").alias("until"))
    )
