"""The consumer: its partitions and positions, its membership in a group, its commits.

`core.py` combines the parts; `headrace.Consumer` and `headrace.aio.Consumer` are shells around it. The other modules
read no clock, use no threads and do no I/O: the engine provides the time, and work beside the program's calls is a task
or a timer of the engine. Code of the program (listeners, callbacks) runs only inside the program's calls: flows yield
`Invoke`.
"""
