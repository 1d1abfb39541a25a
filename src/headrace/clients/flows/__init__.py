"""The requests of a client to a cluster, as generators: they yield requests, receive responses, and do no I/O."""
