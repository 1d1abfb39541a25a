"""The status of pipelines: the state directory, the progress of batches, and metrics."""
