"""Aggregated records: several user records in one record of a stream, in the format of the Kinesis Producer Library."""
