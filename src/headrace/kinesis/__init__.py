"""Amazon Kinesis: consumers whose members share the shards by leases, producers, and a bridge to topics."""
