"""Writing to Kinesis: batches, repetitions in order, and many records in one."""
