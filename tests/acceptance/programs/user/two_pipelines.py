from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from headrace.pipelines import pipeline, table, topic

ORDERS = topic("lake-orders", schema="id INT, total DOUBLE", on_error="null")


@pipeline(source=ORDERS, sink=table("tables/large"), trigger="available_now")
def large(orders: DataFrame) -> DataFrame:
    return orders.where("total > 50").select("id", "total")


@pipeline(source=ORDERS, sink=topic("lake-totals", key="id", create=2), trigger="available_now")
def totals(orders: DataFrame) -> DataFrame:
    return orders.where("_error is null").select(
        f.col("id").cast("string").alias("id"), f.round("total").alias("total")
    )
