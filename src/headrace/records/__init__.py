"""Record batches of Kafka's message format 2: headers, records, compression."""
