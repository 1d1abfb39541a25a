"""How Spark finds `format("headrace")`: it imports every top-level module whose name begins with `pyspark_`.

Spark imports this module for any Python data source, also where Headrace's source is not wanted, and an exception
here would break the lookup for all of them. So nothing heavy is imported, and a missing part only means that the
format is not found.
"""

from __future__ import annotations

try:
    from headrace.spark.datasource import HeadraceDataSource as DefaultSource
except ImportError:  # an environment without PySpark, or with one older than its data source API
    __all__: list[str] = []
else:
    __all__ = ["DefaultSource"]
