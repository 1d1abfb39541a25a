"""The facts that a running app reports: counters, status, and warnings about a blocked event loop."""
