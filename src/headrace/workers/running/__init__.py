"""A running worker: its event loop polls records, runs handlers, commits, and releases partitions."""
