"""Reading a log: by offset, by time, without some records, and with the aborted transactions of a range."""
