"""The state of the producers of a log: sequences, open transactions and aborted transactions."""
