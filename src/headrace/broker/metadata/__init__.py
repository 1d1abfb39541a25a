"""The records of the metadata store, and their writer."""
