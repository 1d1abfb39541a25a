"""Data directories: their logs, their space, and the commits that make appends durable."""
