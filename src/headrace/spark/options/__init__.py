"""The options of reads and writes of topics: their declarations, and the checks before anything runs."""
