"""The consumer group protocol of KIP-848: the coordinator computes the assignment.

Theory of operation
-------------------
Members send one kind of request, ConsumerGroupHeartbeat. There are three epochs:

* The *group epoch* rises when a member joins, leaves or changes its subscription, and when the subscribed topics
  change.
* The *assignment epoch* is the group epoch for which the assignor has computed the target assignment. The first
  heartbeat that finds the assignment epoch lower than the group epoch computes the target assignment again.
* The *member epoch* is the assignment epoch that a member has reached. Each member moves there in steps, by its own
  heartbeats, while the other members continue. (1) The member revokes the partitions that are not in its target, and
  keeps its epoch until it has confirmed the revocation. (2) The member receives the assignment epoch, and all
  partitions of its target that no other member owns. (3) It receives each other partition when its owner has revoked
  it.

So a partition never has two owners. A partition is free when, in the log, no member has it as assigned or as being
revoked. The coordinator removes a member that does not revoke within its rebalance timeout, or sends no heartbeat
within its session timeout.

The state is durable as the content of the log's keys (`state.consumer_group.ConsumerGroup`): the group epoch, the
assignment epoch, and for each member its metadata, its target assignment, and its current assignment. Replaying a
record sets one entry, so compaction may reorder records of different keys. A crash loses the timers, and the version of
the topics with which a group was last compared.

Members of the classic protocol can be in such a group (`classic_members`). A JoinGroup counts as their heartbeat, the
coordinator encodes an assignment for them, and REBALANCE_IN_PROGRESS makes them join again. A classic group becomes a
consumer group when a consumer joins it (`upgrade`), and a classic group again when the last consumer leaves it
(`downgrade`), each in one batch. `any_group.kinds` selects the protocol that handles a request.

The cost of a heartbeat depends on the member's own assignment. The cost of a target assignment is proportional to the
group. So a large group keeps a target assignment for a while, and then handles all changes at once (`turn`).

`heartbeat` has the protocol, `turn` the part that it shares with a classic member's JoinGroup, `removal` leaving and
time-outs, `reconcile` the step of one member towards its target assignment, `target` the computation of the target
assignment, `describe` the description for operators. Assignors, topics and records are in
`headrace.core.coordinator.state`.
"""
