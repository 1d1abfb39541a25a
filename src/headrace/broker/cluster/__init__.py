"""A broker as a member of its cluster, and as the controller."""
