"""Client connections: limits, framing, reading and writing."""
