"""Principals, SASL mechanisms, certificates and ACLs, without I/O and without a clock."""
