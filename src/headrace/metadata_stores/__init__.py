"""Metadata stores: the implementations of `headrace.ports.MetadataStore`. One conformance suite tests all of them."""
