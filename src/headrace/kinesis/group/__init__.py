"""Members of groups: a member owns shards by leases, reads them, and passes their records to a worker."""
