"""Coordinators: state machines whose state is stored in the partitions of an internal topic.

* `runtime`: one shard: append records, replay them, hold back responses, load
* `sharded`: the base of both coordinators: all shards, timers, routing
* `state`: the groups of one partition of `__consumer_offsets`, as replay builds them
* `classic` and `consumer`: the operations of the two group protocols
* `any_group`: the operations that do not depend on the protocol, and the table that selects the protocol
* `group_shards` and `group_coordinator`: the group coordinator; `group_coordinator` is its entry point
* `transaction`: the transaction coordinator
"""
