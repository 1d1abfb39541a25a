"""Reading topics: offsets of streams, tasks, fetches, and record batches to Arrow."""
