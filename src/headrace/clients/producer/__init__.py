"""The producer: `core.py` decides, `sender.py` sends batches, `blocking.py` and `aio.py` are the public clients."""
