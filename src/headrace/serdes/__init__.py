"""Serdes: between a program's values and the bytes of records; named, so that a topic's metadata can say which one."""
