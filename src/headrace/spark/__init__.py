"""Topics as PySpark sources and sinks, without a connector jar.

`datasource` is the entry Spark finds (through the top-level module `pyspark_headrace`); `options` says what was asked
for; `source` reads, `sink` writes; `cluster` is all that knows of a client. Nothing here connects before Spark asks for
data or offsets.
"""
