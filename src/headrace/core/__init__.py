"""Pure state machines: they decide, and are handed time and bytes. No I/O of their own, no clock, no threads."""
