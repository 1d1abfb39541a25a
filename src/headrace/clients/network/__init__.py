"""Connections to brokers: the protocol of one connection, the pool of a client, and brokers that do not answer."""
