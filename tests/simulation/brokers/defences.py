"""Defences that can be switched off in runs with several brokers.

They are those of the runs with one broker that a run with several brokers notices within a few seeds, and those that
only several brokers need.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, ExitStack
from typing import Any
from unittest.mock import patch

from headrace.broker.handlers import offset_for_leader_epoch
from headrace.protocol.messages.offset_for_leader_epoch import EpochEndOffset
from tests.simulation.defences import DEFENCES as OF_ONE_BROKER

_found = offset_for_leader_epoch._partition


def _not_above_the_high_watermark(services: Any, topic: str, wanted: Any) -> EpochEndOffset:
    found = _found(services, topic, wanted)
    if not found.error_code:
        partition = services.partitions.require(topic, wanted.partition)
        found.end_offset = min(found.end_offset, partition.high_watermark)
    return found


DEFENCES: dict[str, list[Any]] = {
    name: OF_ONE_BROKER[name]
    for name in (
        "batches repeated are recognised (B1)",
        "producers are known after a restart (B2)",
        "coordinators answer when it is durable (B7)",
        "what is prepared is completed after a restart (B7)",
        "batches are verified (B9)",
        "transactions have a time (B10)",
        "old epochs are fenced (B11)",
        "readers stop where a transaction is open (B16)",
        "offsets wait for their marker (B17)",
    )
} | {
    "a new leader reports its log end as the end of an epoch": [
        patch.object(offset_for_leader_epoch, "_partition", _not_above_the_high_watermark)
    ],
}


def without(defence: str) -> AbstractContextManager[object]:
    """Return a context manager that switches one defence off."""
    stack = ExitStack()
    for each in DEFENCES[defence]:
        stack.enter_context(each)
    return stack
