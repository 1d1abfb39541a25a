"""Topics as PySpark sources and sinks, without a connector jar.

`source` is the entry Spark finds (through the top-level module `pyspark_headrace`). `offsets` plans, `arrow` decodes,
`reading` fetches one range, `batch`, `stream` and `writer` are the faces that Spark calls; `cluster` is all that
knows of a client. Nothing here connects before Spark asks for data or offsets.
"""
