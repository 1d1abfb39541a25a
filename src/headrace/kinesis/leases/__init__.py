"""The stores of leases: DynamoDB, SQLite and memory; and the tables of the Kinesis Client Library."""
