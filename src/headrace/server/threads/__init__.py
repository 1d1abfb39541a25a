"""Work in threads beside the event loop: syncs, compaction, long computations."""
