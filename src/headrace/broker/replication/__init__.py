"""The partitions of this broker as replicas, and the logs that store them."""
