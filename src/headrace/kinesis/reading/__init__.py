"""From a stream to records: its shards, paced reads of one, and reading ahead of several."""
