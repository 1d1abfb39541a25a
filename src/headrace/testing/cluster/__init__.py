"""Several real brokers in the test's process, each on a port and an event loop of its own, with shared metadata."""
