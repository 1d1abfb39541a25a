"""What the metadata store holds, as records, and the writer of them."""
