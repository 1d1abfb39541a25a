"""The server-side protocol of consumer groups (KIP-848): the coordinator computes who reads what.

Theory of operation
-------------------
Members send one kind of request, ConsumerGroupHeartbeat. Three numbers drive everything:

* the *group epoch* rises when a member joins, leaves or changes what it wants, and when the topics it wants change;
* the *assignment epoch* is the group epoch for which the assignor has computed a target: every partition's future
  owner. The first heartbeat that finds it behind the group epoch computes the target anew;
* the *member epoch* is the assignment epoch that a member has arrived at. Each member is led there on its own, by its
  own heartbeats, while the others continue. First it must revoke the partitions that are not in its target, and keeps
  its epoch until it confirms that. Then it gets the target's epoch and all partitions that no other member owns; the
  rest follows as others give it up.

So a partition never has two owners: it is free only when the member that had it no longer holds it, neither assigned
nor to be given up, in the log. A member that does not give up in its rebalance timeout, or is not heard of for its
session, is removed.

All of it is durable as a plain image of the log's keys (`group.ConsumerGroup`): the group's epoch, the target's epoch,
and by member what it asked for, its target, and what it holds. Replaying a record sets one entry, so the order that
compaction leaves records of different keys in does not matter. Soft, and lost by a crash: timers, and which
version of the topics a group was last compared with.

Members of the classic protocol can be in a group (`classic_members`): a JoinGroup is their heartbeat, an assignment is
encoded for them, and REBALANCE_IN_PROGRESS makes them join again. A classic group that a consumer joins becomes a
consumer group (`upgrade`), and one that the last consumer leaves a classic group (`downgrade`), each in one batch.
Which kind a group is decides who answers (`group.kinds`).

What a heartbeat costs depends on the member's own assignment. A target costs time in proportion to the group, so that
a large group keeps one for a while and looks at once at all that has changed since (`turn`).

Where things are: `heartbeat` the protocol, `turn` what it has in common with a classic member's JoinGroup, `removal`
leaving and the time-outs, `reconcile` how one member is led to its target, `target` how that is computed, `assignors`
by what, `topics` what the topics look like from here, `describe` what an operator sees, `records` what is written.
"""
