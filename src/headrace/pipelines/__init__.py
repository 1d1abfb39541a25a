"""Pipelines on Spark that are declared in a Python file, then planned, run, watched and restarted."""

from headrace.pipelines.declaration import for_each_batch, pipeline, table, topic

__all__ = ["for_each_batch", "pipeline", "table", "topic"]
