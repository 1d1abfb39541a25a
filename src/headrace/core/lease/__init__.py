"""Leases of shards: which member of a group reads which shard, and the group's checkpoint in each shard."""
