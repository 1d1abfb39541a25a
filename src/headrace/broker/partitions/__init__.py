"""Topics and partitions, and the replicas of the partitions on this broker."""
