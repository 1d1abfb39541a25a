"""Readers of single shards: by GetRecords or by fan-out, with their limits, budgets and checkpoints."""
