"""Settings of topics, brokers and groups: what they are, where they come from, how they change."""
