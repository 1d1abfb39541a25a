"""Small files of a log directory: their names and formats, what a sync makes durable, and errors of the disk."""
