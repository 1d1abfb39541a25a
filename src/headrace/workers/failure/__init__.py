"""Failed records: the outcome of a failure, retry topics, dead letters, and tracebacks for both."""
