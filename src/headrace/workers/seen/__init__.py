"""Where a worker keeps the keys of `dedupe=` that it has handled."""
