"""The argument `dedupe=`: a record whose key was handled before is skipped. `seen=` keeps the keys."""
