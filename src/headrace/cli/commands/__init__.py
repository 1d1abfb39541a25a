"""The commands of `headrace`: one module for each command or group, and helpers named after their command."""
