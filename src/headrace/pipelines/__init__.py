"""Pipelines on Spark. A Python file declares them; Headrace plans, runs, watches and restarts them."""

from headrace.pipelines.declaration import for_each_batch, pipeline, table, topic

__all__ = ["for_each_batch", "pipeline", "table", "topic"]
