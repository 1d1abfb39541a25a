"""Bridges: a stream is copied into a topic exactly once, or a topic into a stream at least once."""
