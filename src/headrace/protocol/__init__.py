"""The Kafka wire protocol: frames, headers, the codec and one message class per request and response."""
