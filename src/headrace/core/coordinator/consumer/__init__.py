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

So a partition never has two owners. A partition is free when no member holds it in the log, neither as assigned nor as
to be revoked. The coordinator removes a member that does not revoke within its rebalance timeout, or sends no heartbeat
within its session timeout.

The state is durable as an image of the log's keys (`state.consumer_group.ConsumerGroup`): the group's epoch, the
target's epoch, and for each member its subscription, its target, and the partitions that it holds. Replaying a record
sets one entry, so compaction may reorder records of different keys. A crash loses the timers, and the version of the
topics with which a group was compared last.

Members of the classic protocol can be in such a group (`classic_members`). A JoinGroup is their heartbeat, the
coordinator encodes an assignment for them, and REBALANCE_IN_PROGRESS makes them join again. A classic group becomes a
consumer group when a consumer joins it (`upgrade`), and a classic group again when the last consumer leaves it
(`downgrade`), each in one batch. `group.kinds` chooses the protocol that answers.

The cost of a heartbeat depends on the member's own assignment. The cost of a target is proportional to the group, so a
large group keeps a target for a while and then handles all changes since at once (`turn`).

`heartbeat` has the protocol, `turn` the part that it shares with a classic member's JoinGroup, `removal` leaving and
time-outs, `reconcile` the step of one member towards its target, `target` the computation of the target, `describe` the
view for operators. Assignors, topics and records are in `headrace.core.coordinator.state`.
"""
