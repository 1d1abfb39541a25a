"""Periodic work on the logs of a data directory: retention, checkpoints, deleted directories."""
