"""The consumer without I/O: what it reads, where it is, its place in its group, what it commits.

`core.py` puts the parts together; `headrace.Consumer` and `headrace.aio.Consumer` are shells around it. Nothing here
knows a clock or a thread: time is the engine's, and whatever has to happen while the program works is a task or a
timer of the engine. The program's own code (listeners, callbacks) runs only where the program called in: flows yield
`Invoke`.
"""
