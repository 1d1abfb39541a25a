"""What a client says to a cluster, as generators: they yield requests and receive answers, and do no I/O themselves."""
