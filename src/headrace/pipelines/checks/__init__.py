"""The checks of pipelines before they run: declarations, topics, and the frames that are written to sinks."""
