"""The records of the metadata store, and the writer of the store."""
