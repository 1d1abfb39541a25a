"""JSON to Parquet with Spark: rows that do not decode have no value, and say why in the column _error.

python lake.py HOST:PORT DIRECTORY
"""

import os
import sys
from typing import Any

from pyspark.sql import SparkSession


def fill(spark: SparkSession, bootstrap: str, directory: str) -> None:
    orders = (
        spark.readStream.format("headrace")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("subscribe", "lake-orders")
        .option("startingOffsets", "earliest")
        .option("format", "json")
        .option("schema", "id INT, total DOUBLE")
        .option("onError", "null")
        .option("group", "lake")
        .load()
    )
    query = (
        orders.select("value.id", "value.total", "_error", "offset")
        .writeStream.format("parquet")
        .option("path", f"{directory}/orders")
        .option("checkpointLocation", f"{directory}/checkpoint")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


def read(spark: SparkSession, directory: str) -> list[Any]:
    rows: list[Any] = spark.read.parquet(f"{directory}/orders").orderBy("offset").collect()
    return rows


if __name__ == "__main__":
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    session = SparkSession.builder.master("local[2]").getOrCreate()
    fill(session, *sys.argv[1:])
    print(read(session, sys.argv[2]))
    session.stop()
