"""Join a stream with a table, and write the result to another table.

The table of airlines is read when the pipeline starts.

headrace pipeline run examples/pipelines/enrich.py
"""

from __future__ import annotations

import os
from pathlib import Path

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from headrace.pipelines import pipeline, table, topic

TABLES = os.environ.get("TABLES", str(Path.cwd() / "tables"))


@pipeline(
    source={
        "flights": topic("flights", schema="carrier STRING, delay INT, at TIMESTAMP", create=2),
        "airlines": table(f"{TABLES}/airlines", schema="carrier STRING, name STRING"),
    },
    sink=table(f"{TABLES}/flights", partition_by=("day",)),
)
def named_flights(flights: DataFrame, airlines: DataFrame) -> DataFrame:
    """Add the carrier's name to each flight; a flight of an unknown carrier has no name."""
    named = flights.join(f.broadcast(airlines), "carrier", "left")
    return named.withColumn("day", f.to_date("at"))
