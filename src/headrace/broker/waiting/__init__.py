"""Requests that are not answered at once: delayed requests, work in steps, fetch sessions."""
