"""The property test of consumer groups finds faults: each test switches one defence off, and the property test fails.

Each fault is found in a second. The steps of upgrades and downgrades have tests of their own in
`tests/unit/core/coordinator/consumer/test_mixed_group.py`.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from headrace.core.coordinator.any_group import kinds
from headrace.core.coordinator.consumer import classic_members, turn
from headrace.errors import ErrorCode
from tests.effort import examples
from tests.property.test_consumer_group_protocol import ConsumerGroupMachine

pytestmark = pytest.mark.slow  # not in `make check`

Patch = pytest.MonkeyPatch


def partitions_are_assigned_before_their_revocation(patch: Patch) -> None:
    """Every partition counts as free."""
    patch.setattr(turn.Turn, "_is_free", lambda _self, _partition: True)


def classic_members_are_not_notified_of_free_partitions(patch: Patch) -> None:
    """A classic member is not notified to join again when it could have more partitions."""
    patch.setattr(classic_members, "_is_released", lambda _group, _member_id: False)


def commits_of_any_epoch_count(patch: Patch) -> None:
    """No member is fenced."""
    check = kinds.CONSUMER._replace(check_commit=lambda _shard, _committer: ErrorCode.NONE)
    patch.setattr(kinds, "CONSUMER", check)


@pytest.mark.parametrize(
    "fault",
    [
        partitions_are_assigned_before_their_revocation,
        classic_members_are_not_notified_of_free_partitions,
        commits_of_any_epoch_count,
    ],
)
def test_a_fault_is_found(fault: Callable[[Patch], None], monkeypatch: Patch) -> None:
    fault(monkeypatch)
    with pytest.raises(AssertionError):
        run_state_machine_as_test(
            ConsumerGroupMachine,
            settings=settings(
                max_examples=examples(100),
                stateful_step_count=40,
                derandomize=True,
                database=None,
                deadline=None,
                phases=[Phase.generate],
                suppress_health_check=list(HealthCheck),
                report_multiple_bugs=False,
            ),
        )
