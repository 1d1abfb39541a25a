"""The broker: one synchronous object that handles requests. A shell runs it: a server, a program, a simulation."""
