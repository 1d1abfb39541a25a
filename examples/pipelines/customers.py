"""Turn the changes of a database table into a compacted topic: the last state of each customer, or a tombstone.

headrace pipeline run examples/pipelines/customers.py
"""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from headrace.pipelines import for_each_batch, pipeline, topic

CHANGES = topic(
    "customer-changes",
    schema="op STRING, id BIGINT, name STRING, city STRING, version BIGINT",
    create=2,
)
CUSTOMERS = topic(
    "customers",
    key="id",
    tombstone="deleted",
    create=2,
    configs={"cleanup.policy": "compact"},
)


def latest(batch: DataFrame, _batch_id: int) -> DataFrame:
    """Return the last change of each customer in a batch; batches come one after the other."""
    return batch.groupBy("id").agg(
        f.max_by("name", "version").alias("name"),
        f.max_by("city", "version").alias("city"),
        (f.max_by("op", "version") == "delete").alias("deleted"),
    )


@pipeline(source=CHANGES, sink=for_each_batch(latest, to=CUSTOMERS))
def customers(changes: DataFrame) -> DataFrame:
    """Pass on all changes with an id; no state is kept between batches."""
    return changes.where("id IS NOT NULL")
