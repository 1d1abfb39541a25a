"""Scheduled records: each waits in a schedule, a log beside that of its partition, until its delivery time."""
