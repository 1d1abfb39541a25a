"""The options and arguments that several commands share, and what their values mean."""
