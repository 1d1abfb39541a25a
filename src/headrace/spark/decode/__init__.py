"""Decoders of values: JSON, Avro and Protobuf to Arrow columns. They know nothing of topics and brokers."""
