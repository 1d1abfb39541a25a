"""What several handlers share: the work behind requests, done with the services of the broker."""
