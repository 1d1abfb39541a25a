"""What a read or a write was asked for."""
