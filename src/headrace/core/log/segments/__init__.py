"""The segments of a log: one segment, the list of all, which may be deleted, and how compacted ones replace others."""
