"""Writing rows to topics, at least once or exactly once."""
