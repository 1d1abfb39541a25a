"""The pages of `docs/reference/` that are made from the code: settings, commands, the Python API."""
