"""Serdes convert values of a program to bytes of records and back. A topic's configuration can name its serdes."""
