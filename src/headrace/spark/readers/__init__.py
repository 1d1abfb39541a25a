"""The classes that Spark calls for batch and streaming reads of topics, and the choice between brokers and archive."""
