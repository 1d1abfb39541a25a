"""The log directories: their logs, their disk space, and the group commits."""
