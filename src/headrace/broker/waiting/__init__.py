"""Requests that get no response at once: delayed requests, work in steps, fetch sessions."""
