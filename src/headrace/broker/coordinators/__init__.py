"""The group and transaction coordinators in the broker: their topics, their settings, their markers."""
