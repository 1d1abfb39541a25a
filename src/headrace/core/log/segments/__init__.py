"""The segments of a log: one segment, the list of all, retention, and how a compacted segment replaces others."""
