"""The coordinator of classic consumer groups: membership, rebalances and committed offsets.

Theory of operation
-------------------
A group id hashes to one partition of `__consumer_offsets`; the shard of that partition (`shard.GroupShard`, driven by
`headrace.core.coordinator.runtime`) holds the group. `coordinator.GroupCoordinator` is the way in.

Durable, changed by replay only: the *generation* of a group as one immutable value (`records.Generation`: its number,
protocol, leader, members with their assignments, and whether the leader's assignment has arrived), and its committed
offsets. Two records are written per rebalance: one when the join phase completes, before any member learns of the new
generation, and one when the leader's assignment arrives.

Soft, lost by a crash on purpose: that a rebalance is being prepared and who has joined it, members that were handed an
id and have not joined yet, and all timers. After a restart a group is what its last generation was: members of a stable
generation just go on with their heartbeats, each with a full session; members of a generation that was still waiting
for its assignment repeat their JoinGroup or SyncGroup and find it; members that had joined an incomplete rebalance
get UNKNOWN_MEMBER_ID or the present generation, and join again.

Where things are: `classic` the states and the in-memory group; `join`, `rebalance`, `sync`, `membership` the operations
of the group protocol; `offsets` commits, fetches and expiry; `describe` the read-only views; `records` what is written.
"""
