"""The producer: `core.py` decides, `sender.py` carries batches, `blocking.py` and `aio.py` are its two faces."""
