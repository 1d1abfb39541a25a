"""The module in which Spark finds `format("headrace")`. Spark imports every top-level module named `pyspark_...`.

Spark imports this module for any Python data source, also in programs that do not use Headrace. An exception here would
break the look-up of all sources. So the module imports no large library, and if a part is missing, Spark only does not
find the format.
"""

from __future__ import annotations

try:
    from headrace.spark.datasource import HeadraceDataSource as DefaultSource
except ImportError:  # an environment without PySpark, or with one older than its data source API
    __all__: list[str] = []
else:
    __all__ = ["DefaultSource"]
