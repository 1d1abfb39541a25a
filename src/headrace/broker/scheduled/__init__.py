"""Scheduled records: records with a delivery time in the future."""
