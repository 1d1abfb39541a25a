"""The guard of a broker: its parent process, which ends the broker's ZooKeeper session when the broker has died."""
