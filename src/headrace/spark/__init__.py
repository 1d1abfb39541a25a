"""Topics as PySpark sources and sinks, without a connector jar.

Spark finds `datasource` through the top-level module `pyspark_headrace`. `options` parses the options, `readers` and
`source` read topics, `sink` writes topics. `decode` converts typed values to columns, `archive` copies topics to
tables, and `client` has the settings and connections of the clients. `kinesis` is the format for Kinesis streams.
Nothing connects to a broker before Spark requests data or offsets.
"""
