"""Defences that can be switched off, to test that the checker finds each missing defence.

Each entry has the patches that switch a defence off. The key names the defence and its hazard.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, ExitStack
from typing import Any
from unittest.mock import patch

from headrace.core.coordinator.any_group import transactional
from headrace.core.coordinator.consumer import turn
from headrace.core.coordinator.consumer.reconcile import reconcile
from headrace.core.coordinator.runtime import NOTHING, ShardRuntime
from headrace.core.coordinator.state.offset_store import OffsetStore
from headrace.core.coordinator.transaction import transactions
from headrace.core.coordinator.transaction.shard import TransactionShard
from headrace.core.log import PartitionLog
from headrace.core.log.producers.producer_state import ProducerStates
from headrace.errors import ErrorCode


def _not_parked(_self: Any, response: Any, _on_error: Any) -> Any:
    return response


def _found(self: Any, transactional_id: str, _producer_id: int, _epoch: int) -> Any:
    return self.transactions[transactional_id]


def _visible_at_once(self: Any, record: Any) -> None:
    self.replay(record.commit)


def _end_without_bump(
    shard: Any, transactional_id: str, producer: Any, now_ms: int, *, committed: bool
) -> Any:
    transaction = shard.find(transactional_id, *producer)
    ended = transactions.end(shard, transaction, now_ms, committed=committed)
    return ended.with_response(producer)


def _everything_is_free(current: Any, target: Any, epoch: Any, owned: Any, _is_free: Any) -> Any:
    return reconcile(current, target, epoch, owned, lambda _partition: True)


DEFENCES: dict[str, list[Any]] = {
    "batches repeated are recognised (B1)": [
        patch.object(ProducerStates, "check", lambda *_, **__: None)
    ],
    "producers are known after a restart (B2)": [
        patch.object(ProducerStates, "restore", lambda *_: True)
    ],
    "markers of old epochs end nothing (B6)": [
        patch.object(ProducerStates, "check_marker", lambda *_: None)
    ],
    "coordinators answer when it is durable (B7)": [
        patch.object(ShardRuntime, "_park", _not_parked),
        patch.object(
            TransactionShard, "when_durable", lambda _self, then, _now_ms: then(ErrorCode.NONE)
        ),
    ],
    "what is prepared is completed after a restart (B7)": [
        patch.object(TransactionShard, "loaded", lambda _self, _now_ms: [])
    ],
    "each transaction has an epoch (B8)": [
        patch.object(transactions, "end_bumping", _end_without_bump)
    ],
    "batches are verified (B9)": [
        patch.object(transactions, "unverified", lambda *_, **__: ErrorCode.NONE)
    ],
    "transactions have a time (B10)": [
        patch.object(transactions, "timed_out", lambda *_, **__: NOTHING)
    ],
    "old epochs are fenced (B11)": [patch.object(TransactionShard, "find", _found)],
    "readers stop where a transaction is open (B16)": [
        patch.object(
            PartitionLog,
            "last_stable_offset",
            property(lambda self: self.high_watermark),
        )
    ],
    "offsets wait for their marker (B17)": [
        patch.object(OffsetStore, "replay_pending", _visible_at_once)
    ],
    "members of old generations commit nothing (C3)": [
        patch.object(transactional, "_refusal", lambda *_: ErrorCode.NONE)
    ],
    "partitions wait for their owner (C6)": [patch.object(turn, "reconcile", _everything_is_free)],
    "the next transaction waits for the markers": [patch.object(transactions, "PREPARED", ())],
}


def without(defence: str) -> AbstractContextManager[object]:
    """Return a context manager that switches one defence off."""
    stack = ExitStack()
    for each in DEFENCES[defence]:
        stack.enter_context(each)
    return stack
