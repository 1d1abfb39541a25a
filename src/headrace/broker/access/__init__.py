"""Who is on a connection, what they may do, and what is written down of it."""
