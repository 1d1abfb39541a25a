"""Several brokers of one cluster on one machine (`headrace serve --brokers N`): a supervisor and its processes."""
