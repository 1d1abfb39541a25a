"""Values as typed columns: JSON, Avro, Protobuf."""
