"""Files beside a segment that make it fast to search, and the leader epochs of a log."""
