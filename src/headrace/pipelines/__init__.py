"""Pipelines on Spark that are declared in a Python file, then planned, run, watched and restarted."""
