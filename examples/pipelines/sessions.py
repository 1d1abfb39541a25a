"""Group the clicks of a user into visits. Clicks more than five minutes apart belong to different visits.

headrace pipeline run examples/pipelines/sessions.py
"""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from headrace.pipelines import pipeline, topic


@pipeline(
    source=topic("clicks", schema="user STRING, page STRING, at TIMESTAMP", create=2),
    sink=topic("visits", key="user", create=2),
    settings={"spark.sql.shuffle.partitions": 2},
)
def visits(clicks: DataFrame) -> DataFrame:
    """Write each visit once, when the watermark has passed its end; open visits are the state."""
    return (
        clicks.withWatermark("at", "1 minute")
        .groupBy(f.session_window("at", "5 minutes").alias("visit"), "user")
        .agg(f.count("*").alias("clicks"))
        .select("user", "clicks", f.col("visit.start").alias("start"))
    )
