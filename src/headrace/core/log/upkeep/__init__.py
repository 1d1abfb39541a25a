"""Periodic work on the logs of a data directory: group commits, retention, checkpoints, deleted directories."""
