"""Kafka clients: flows that decide (generators without I/O), and drivers and facades that act."""
