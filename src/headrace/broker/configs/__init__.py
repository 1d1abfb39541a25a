"""The settings of topics, brokers and groups: their values, sources and changes."""
