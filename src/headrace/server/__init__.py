"""The TCP server: connections, group commit, clock and timers around one `headrace.broker.Broker`."""
