"""A broker inside the program: embedded in a process, in memory or over a directory, in real time or by hand."""
