"""The model of replication holds with all rules; without any of them a violation is found."""

from __future__ import annotations

import random
from dataclasses import fields, replace
from typing import Any

import pytest

from headrace.core.cluster import partition_states
from headrace.core.cluster.records import PartitionState
from headrace.core.log.index.leader_epochs import LeaderEpochCache
from headrace.core.replica import following
from headrace.core.replica.following import Truncate
from headrace.core.replica.isr import Isr
from tests.model import replay
from tests.model.__main__ import WALKED
from tests.model.leading import end_offset_for
from tests.model.model import Model
from tests.model.necessary import CASES, NOT_SHOWN, find
from tests.model.printing import lines
from tests.model.replay import Replay
from tests.model.rules import Bounds, Rules
from tests.model.search import exhaust, walk
from tests.model.state import MEMBERS, Leadership, Metadata, Replica, mask, present


@pytest.mark.slow
def test_no_state_of_two_brokers_violates_an_invariant() -> None:
    result = exhaust(Model(Bounds()))
    assert result.complete
    assert not result.problem
    assert result.states > 30_000


@pytest.mark.parametrize("name", WALKED)
def test_random_walks_violate_no_invariant(name: str) -> None:
    model = Model(WALKED[name])
    problems = [walk(model, seed, 60).problem for seed in range(8)]
    assert not any(problems)


def test_every_rule_has_a_search() -> None:
    assert CASES.keys() | NOT_SHOWN.keys() == {field.name for field in fields(Rules)}


@pytest.mark.parametrize("rule", CASES)
def test_a_missing_rule_is_found(rule: str) -> None:
    result = find(rule)
    assert result.problem
    assert any(line.startswith("(1) ") for line in lines(result.trace))


@pytest.mark.parametrize("rule", CASES)
def test_with_all_rules_the_search_of_a_case_finds_nothing(rule: str) -> None:
    try:
        result = find(rule, off=False, most=2000)
    except ValueError as error:
        assert "is not possible" in str(error)  # noqa: PT017 - a rule may forbid one of the first steps
        return
    assert not result.problem


def test_the_model_derives_the_present_state_as_the_brokers_do() -> None:
    chance = random.Random(1)
    for _ in range(300):
        registrations = tuple(chance.randrange(1, 6) for _ in range(3))
        leader, isr = chance.randrange(-1, 3), chance.randrange(1, 8)
        version = chance.randrange(2)
        stored = Leadership(leader, chance.randrange(9), isr, 0, chance.randrange(6))
        metadata = Metadata(version, stored, (2, 0, 1), registrations)
        record = PartitionState(leader, stored.epoch, MEMBERS[isr], (), stored.registration)
        real = partition_states.present_state(
            record if version else None, (2, 0, 1), dict(enumerate(registrations))
        )
        modelled = present(metadata)
        assert (real.leader, real.leader_epoch, mask(real.isr), real.registration) == (
            modelled.leader,
            modelled.epoch,
            modelled.isr,
            modelled.registration,
        )


@pytest.mark.parametrize("log", [(1,), (1, 1, 3), (2, 4, 4), (3, 3)])
@pytest.mark.parametrize("epoch", range(1, 5))
def test_the_model_finds_the_end_of_an_epoch_as_the_log_does(
    log: tuple[int, ...], epoch: int
) -> None:
    cache = LeaderEpochCache()
    for offset, record in enumerate(log):
        cache.assign(record, offset)
    leader = Replica(0, 1, 0, log[-1], log, 0, 0, 0, None, None)
    if epoch <= log[-1]:
        assert end_offset_for(leader, epoch) == cache.end_offset_for(epoch, len(log))


_REPLAYED = Bounds(
    end=3, epochs=8, broker_epochs=6, versions=12, controllers=2, loses_session=False
)


def _replay(model: Model) -> tuple[set[str], int]:
    """Replay walks; return the names of the steps, and how many states of leaders were compared."""
    names, compared = set(), 0
    for seed in range(60):
        replayed, state = Replay(model), model.first
        for label, after in walk(model, seed, 60).trace:
            replayed.take(state, label, after)
            state = after
            names.add(label[0])
        compared += replayed.compared
    return names, compared


@pytest.mark.parametrize(
    "bounds",
    [
        replace(_REPLAYED, power_cuts=1),
        replace(_REPLAYED, syncs=True),
        replace(_REPLAYED, min_isr=2),
    ],
    ids=["a power cut", "synced first", "min.insync.replicas=2"],
)
def test_walks_reach_the_same_states_with_the_real_replicas(bounds: Bounds) -> None:
    names, compared = _replay(Model(bounds))
    assert compared > 1000
    assert names >= {"append", "fetch", "response", "shrink", "expand", "settle", "kill"}


@pytest.mark.parametrize(
    ("owner", "name", "wrong"),
    [
        (replay, "find_divergence", lambda *_: None),
        (replay, "own_progress", lambda end, _synced, **_kw: end - 1),
        (Isr, "_count", lambda isr: setattr(isr.progress, "maximal_isr", isr.committed.isr)),
        (following, "_truncation", lambda _epoch, _end, log: Truncate(log.high_watermark)),
    ],
    ids=["divergence", "progress", "maximal ISR", "truncation"],
)
def test_a_replay_notices_wrong_code(
    owner: Any, name: str, wrong: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(owner, name, wrong)
    model = Model(_REPLAYED)
    with pytest.raises(AssertionError):
        _replay(model)
