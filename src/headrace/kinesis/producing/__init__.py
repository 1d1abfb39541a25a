"""The Kinesis producer: decisions without I/O (`core.py`), the engine on an event loop, and a blocking engine."""
