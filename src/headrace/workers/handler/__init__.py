"""The function that a program registers: its signature, its context, its threads and its results."""
