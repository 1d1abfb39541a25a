"""Metadata stores: implementations of `headrace.ports.MetadataStore`, held to one conformance suite."""
