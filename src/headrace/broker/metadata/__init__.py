"""The writer of the metadata store, and the identity of the broker in the store."""
