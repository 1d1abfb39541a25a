"""Reading topics: places in a stream, tasks, record batches to Arrow."""
