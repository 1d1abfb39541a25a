"""Delayed delivery in the broker: the schedules of its partitions, and when each has something to do."""
