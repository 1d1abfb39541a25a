"""Appending to a log: the checks of a produced batch, and the files that take it."""
