"""What the coordinators of groups and transactions need of a broker: their partitions, settings and requests."""
