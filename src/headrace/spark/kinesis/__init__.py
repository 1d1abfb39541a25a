"""`format("headrace-kinesis")`: Amazon Kinesis streams as a source and a sink of Spark."""
