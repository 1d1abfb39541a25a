"""Connections of Spark's processes to a cluster: settings, the first contact, and the clients that tasks share."""
