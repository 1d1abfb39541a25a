"""The coordinator of transactions: who produces under a transactional id, and whether what it wrote counts.

Theory of operation
-------------------
A transactional id hashes to one partition of `__transaction_state`; the shard of that partition
(`shard.TransactionShard`, driven by `headrace.core.coordinator.runtime`) holds its transaction.
`coordinator.TransactionCoordinator` is the way in.

Durable, changed by replay only: one immutable value for each id (`records.TransactionMetadata`: producer id and epoch,
state, the partitions written to). The decision of a transaction is the record that makes it PREPARE_COMMIT or
PREPARE_ABORT. Only when the high watermark has passed that record are markers written, into every partition of the
transaction; when the last of them is durable, the record that completes the transaction follows.

Soft: which markers are still missing, and timers. After a restart a prepared transaction has all its markers written
again, which changes nothing in partitions that have them; an ongoing one gets the rest of its time.

Where things are: `states` the table; `producers` who may use an id; `transactions` what is in a transaction and how it
ends; `markers` completion; `views` what administrators see; `records` what is written.
"""
