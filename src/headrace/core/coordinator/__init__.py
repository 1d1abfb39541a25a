"""Coordinators: state machines that live in the partitions of an internal topic.

`runtime` is what they share: append, replay, park the response, load. `group` is the coordinator of consumer groups,
`transaction` that of transactions.
"""
