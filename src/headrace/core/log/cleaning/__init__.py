"""Rewriting sealed segments: compaction, and removal of expired records."""
