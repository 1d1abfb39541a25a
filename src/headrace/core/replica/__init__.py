"""A replica of a partition: its role, the progress of all replicas, the high watermark, and acknowledgements."""
