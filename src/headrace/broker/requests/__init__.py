"""Parts of request handling that several handlers share. They work with the services of the broker."""
