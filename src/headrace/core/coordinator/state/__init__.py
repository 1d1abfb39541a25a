"""The groups of one partition of `__consumer_offsets`: records, and the state that replaying the records builds.

`shard.GroupShard` holds everything: classic groups (`classic_group`), groups of the server-side protocol
(`consumer_group`) and committed offsets (`offset_store`). `records` and `consumer_records` encode and decode what the
coordinator writes. `memory` counts how much memory the groups hold. The operations on this state are in `classic`,
`consumer` and `any_group`.
"""
