"""What carries out the effects of a flow: sockets, waiting and deadlines."""
