"""The metadata store of another process on this machine. The brokers that one supervisor starts share it."""
