"""The group and transaction coordinators in the broker: their topics, settings and markers."""
