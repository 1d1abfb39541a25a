"""The output of commands: results, messages, tables and progress."""
