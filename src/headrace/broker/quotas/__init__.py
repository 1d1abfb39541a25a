"""Who may do how much, and what happens to requests beyond that."""
