"""Dead letters: the headers that describe where a failed record came from and why it failed."""
