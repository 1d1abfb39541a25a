"""The partition log: segments of record batches, their indexes, epochs, producers, retention and recovery."""
