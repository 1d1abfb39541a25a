"""Delayed delivery: records wait in a schedule, a log beside that of their partition, until they are due."""
