"""Defences of liveness that can be switched off, to test that the runs find each missing defence."""

from __future__ import annotations

from contextlib import AbstractContextManager, ExitStack
from typing import Any, Final
from unittest.mock import patch

from headrace.core.coordinator.classic import membership
from headrace.core.coordinator.consumer import heartbeat
from headrace.core.coordinator.consumer.turn import Turn
from headrace.core.coordinator.consumer.upgrade import Upgrade, upgrade
from headrace.core.coordinator.state.consumer_group import ConsumerGroup
from headrace.core.coordinator.state.shard import GroupShard
from headrace.core.coordinator.state.topics import known_topics, metadata_hash

_replay = ConsumerGroup.replay
_group_epoch = Turn._group_epoch


def _remembers_what_was_resolved(self: ConsumerGroup, record: Any) -> None:
    resolved = dict(self.resolved)
    _replay(self, record)
    self.resolved = resolved


def _looks_at_topics_only(self: Turn) -> int:
    if not self._identity.is_new and self.group.checked == self._shard.topics.changes:
        return self.group.epoch
    return _group_epoch(self)


def _upgrade_that_is_content(shard: Any, classic: Any) -> tuple[ConsumerGroup, Upgrade]:
    group, upgraded = upgrade(shard, classic)
    group.metadata_hash = metadata_hash(known_topics(shard.topics, group.subscribed))
    return group, upgraded


DEFENCES: Final[dict[str, list[Any]]] = {
    "a regular expression is forgotten with its last member": [
        patch.object(ConsumerGroup, "replay", _remembers_what_was_resolved)
    ],
    "a topic of one member's expression raises the epoch": [
        patch.object(Turn, "_group_epoch", _looks_at_topics_only)
    ],
    "an upgrade computes a target": [patch.object(heartbeat, "upgrade", _upgrade_that_is_content)],
    "classic groups see new partitions": [
        patch.object(membership, "has_new_partitions", lambda *_: False)
    ],
    "members of consumer groups have sessions": [
        patch.object(GroupShard, "begin_consumer_session", lambda *_: None)
    ],
    "members of classic groups have sessions": [
        patch.object(GroupShard, "reset_session", lambda *_args, **_options: None)
    ],
}


def without(defence: str) -> AbstractContextManager[object]:
    """Return a context manager that switches one defence off."""
    stack = ExitStack()
    for each in DEFENCES[defence]:
        stack.enter_context(each)
    return stack
