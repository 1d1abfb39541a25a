"""Streams copied into topics exactly once, and topics into streams."""
