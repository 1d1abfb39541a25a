"""Configuration: frozen dataclasses whose attributes are Kafka's names with dots as underscores."""
