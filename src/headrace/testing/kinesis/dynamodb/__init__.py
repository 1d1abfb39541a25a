"""The fake of DynamoDB: tables with conditional writes, for stores of leases."""
