"""File systems behind the port `headrace.ports.FileSystem`: on disk, and in memory."""
