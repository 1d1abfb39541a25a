"""The metadata of the cluster, without I/O."""
