"""The transaction coordinator: it assigns a producer to a transactional id, and decides how each transaction ends.

Theory of operation
-------------------
A transactional id hashes to one partition of `__transaction_state`. The shard of that partition
(`shard.TransactionShard`, run by `headrace.core.coordinator.runtime`) holds the id's transaction.
`coordinator.TransactionCoordinator` is the entry point.

One immutable value for each id is durable, and only replay changes it (`records.TransactionMetadata`: producer id and
epoch, state, the partitions of the transaction). A transaction ends in four steps. (1) The coordinator appends the
decision: the record with the state PREPARE_COMMIT or PREPARE_ABORT. (2) The high watermark passes that record. (3) The
coordinator writes a marker into each partition of the transaction. (4) When all markers are durable, the coordinator
appends the record that completes the transaction.

The rest is in memory, and a crash loses it: which markers are missing, and all timers. After a restart the coordinator
writes all markers of a prepared transaction again, which changes nothing in partitions that have them. An ongoing
transaction keeps the deadline that follows from its stored start.

`states` has the table of states, `producers` the check of producers and InitProducerId, `transactions`
AddPartitionsToTxn and EndTxn, `markers` the completion, `views` the descriptions for administrators, `records` the
stored records.
"""
