"""The admin clients: the flows of both (`core.py`), the asyncio client, and the blocking client."""
