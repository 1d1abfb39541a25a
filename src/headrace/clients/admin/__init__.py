"""The clients that create, describe and change: what both decide (`core.py`), and the twins that act."""
