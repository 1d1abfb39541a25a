"""How Spark finds `format("headrace-kinesis")`: it imports every top-level module whose name begins with `pyspark_`.

As in `pyspark_headrace`: nothing heavy is imported, and a missing part only means that the format is not found.
"""

from __future__ import annotations

try:
    from headrace.spark.kinesis.datasource import KinesisDataSource as DefaultSource
except ImportError:  # an environment without PySpark, or with one older than its data source API
    __all__: list[str] = []
else:
    __all__ = ["DefaultSource"]
