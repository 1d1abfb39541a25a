"""Transactions against a slow model: requests arrive twice, late or not at all, with crashes between any two steps.

Further tests switch one defence off each, to show that the check can fail.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from headrace.core.coordinator.runtime import NOTHING, Result
from headrace.core.coordinator.transaction import shard, transactions
from headrace.core.coordinator.transaction.producers import ProducerIdAndEpoch
from headrace.errors import ErrorCode
from tests.fixtures.transaction_model import BumpingModel, TransactionModel, ViolationError

SEEDS = 60
STEPS = 300


def run(seed: int, kind: type[TransactionModel] = TransactionModel) -> None:
    harness = kind(seed)
    for _ in range(STEPS):
        harness.step()
    harness.settle()
    harness.check()


@pytest.mark.parametrize("kind", [TransactionModel, BumpingModel])
@pytest.mark.parametrize("block", range(4))
def test_transactions_are_atomic_in_random_runs(block: int, kind: type[TransactionModel]) -> None:
    for seed in range(block * SEEDS // 4, (block + 1) * SEEDS // 4):
        run(seed, kind)


def _markers_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        shard.TransactionShard, "when_durable", lambda _self, then, _now_ms: then(ErrorCode.NONE)
    )


def _no_verification(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transactions, "unverified", lambda *_: ErrorCode.NONE)


def _no_recovery(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shard.TransactionShard, "loaded", lambda _self, _now_ms: [])


def _no_time_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transactions, "timed_out", lambda *_: NOTHING)


def _no_fencing(monkeypatch: pytest.MonkeyPatch) -> None:
    def find(self: Any, transactional_id: str, _producer_id: int, _epoch: int) -> Any:
        return self.transactions[transactional_id]

    monkeypatch.setattr(shard.TransactionShard, "find", find)


def _no_epoch_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    def end(
        at: Any, name: str, producer: ProducerIdAndEpoch, now_ms: int, *, committed: bool
    ) -> Result[Any]:
        transaction = at.find(name, *producer)
        ended = transactions.end(at, transaction, now_ms, committed=committed)
        return ended.with_response(producer)

    monkeypatch.setattr(transactions, "end_bumping", end)


def _batches_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BumpingModel, "waits", False)


DEFENCES = [_markers_at_once, _no_verification, _no_recovery, _no_time_out, _no_fencing]


@pytest.mark.parametrize("switch_off", DEFENCES, ids=lambda each: each.__name__.strip("_"))
def test_without_a_defence_a_violation_is_found(
    monkeypatch: pytest.MonkeyPatch, switch_off: Callable[[pytest.MonkeyPatch], None]
) -> None:
    switch_off(monkeypatch)
    for seed in range(400):
        try:
            run(seed)
        except ViolationError:
            return
    pytest.fail("nothing was found")


@pytest.mark.parametrize(
    "switch_off",
    [_no_epoch_of_its_own, _markers_at_once, _batches_at_once, _no_recovery, _no_time_out],
    ids=lambda each: each.__name__.strip("_"),
)
def test_without_a_defence_of_version_2_a_violation_is_found(
    monkeypatch: pytest.MonkeyPatch, switch_off: Callable[[pytest.MonkeyPatch], None]
) -> None:
    switch_off(monkeypatch)
    for seed in range(400):
        try:
            run(seed, BumpingModel)
        except ViolationError:
            return
    pytest.fail("nothing was found")
