"""The fake of DynamoDB: tables with conditional writes, for lease stores."""
