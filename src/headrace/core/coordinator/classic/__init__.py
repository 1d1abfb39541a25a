"""The classic group protocol: members join and sync, and one of the members, the leader, computes the assignment.

`join`, `rebalance` and `sync` are the phases of a rebalance, in this order. `membership` has heartbeats, leaving and
expired sessions. `coverage` finds partitions that the leader's assignment leaves without an owner.
`headrace.core.coordinator.state.classic_group` holds such a group, `state.classic_states` has the table of its states.
"""
