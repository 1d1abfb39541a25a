"""Bounds of requests and responses: how much one request may cost, how much one response may contain."""
