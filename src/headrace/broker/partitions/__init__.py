"""Topics: which exist, and what changes them."""
