"""How commands print results, messages, tables and progress."""
