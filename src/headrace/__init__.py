"""Headrace: replayable, partitioned logs that speak the Apache Kafka protocol, for Python teams."""

__version__ = "0.1.0"
