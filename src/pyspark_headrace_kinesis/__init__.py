"""The module in which Spark finds `format("headrace-kinesis")`; see `pyspark_headrace` for its rules.

The module imports no large library, and if a part is missing, Spark only does not find the format.
"""

from __future__ import annotations

try:
    from headrace.spark.kinesis.datasource import KinesisDataSource as DefaultSource
except ImportError:  # an environment without PySpark, or with one older than its data source API
    __all__: list[str] = []
else:
    __all__ = ["DefaultSource"]
