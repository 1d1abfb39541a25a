"""The commits of a worker: offsets to its group, or offsets and results in transactions."""
