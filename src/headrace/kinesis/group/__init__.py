"""A member of a group: which shards it reads, and their records to a worker."""
