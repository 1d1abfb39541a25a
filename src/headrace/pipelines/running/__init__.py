"""Runs of pipelines: the session, supervised queries, restarts, and processes for isolated pipelines."""
