"""`format("headrace-kinesis")`: streams of Amazon Kinesis as a source and a sink of Spark."""
