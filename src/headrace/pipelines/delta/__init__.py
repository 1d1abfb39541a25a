"""Delta tables as sources and sinks of pipelines, without Spark's own support for Delta."""
