"""Leases of shards: which member of a group reads which shard, and how far it has come."""
