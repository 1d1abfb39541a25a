"""Operations on groups of both protocols: commits, fetches of offsets, descriptions, deletion, timers.

Theory of operation
-------------------
A group id hashes to one partition of `__consumer_offsets`. The shard of that partition (`state.shard.GroupShard`, run
by `headrace.core.coordinator.runtime`) holds the group. `headrace.core.coordinator.group_coordinator` is the entry
point.

Two values of a classic group are durable, and only replay changes them: its *generation* (`state.records.Generation`:
number, protocol, leader, members with their assignments, and whether the leader's assignment has arrived), and its
committed offsets. The coordinator writes two records in a rebalance: one when the join phase completes, before any
member receives the new generation, and one when the leader's assignment arrives.

The rest is in memory, and a crash loses it: that a rebalance is being prepared, which members have joined it, member
ids that were issued to clients that have not joined yet, and all timers. After a restart a group has its last
generation. (1) Members of a stable generation continue with heartbeats, each with a full session. (2) Members of a
generation that was waiting for its assignment repeat JoinGroup or SyncGroup. (3) Members that had joined an incomplete
rebalance get UNKNOWN_MEMBER_ID, or the present generation, and join again.

`kinds` chooses the protocol that answers a request: `headrace.core.coordinator.classic` or `consumer`. `offsets` has
commits, fetches and expiry of offsets, `fencing` the check of member id and generation, `transactional` the offsets of
transactions, `stopping` members that an administrator stops.
"""
