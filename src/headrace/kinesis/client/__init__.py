"""Clients of AWS: settings, errors, retries, and faster decoding of GetRecords."""
