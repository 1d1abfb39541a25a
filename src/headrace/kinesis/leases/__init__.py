"""Where leases are kept: DynamoDB, a SQLite file, memory."""
