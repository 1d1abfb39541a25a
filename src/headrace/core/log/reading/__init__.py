"""Reading a log by offset and by time, leaving records out, and the aborted transactions of a range."""
