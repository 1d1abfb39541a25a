"""Opening a log: which files are sound, what is cut off, and what the caches still know."""
