"""The decisions of a worker, without I/O: which record is next, what to commit, how partitions are released."""
