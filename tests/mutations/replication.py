"""Defences of replication, and of the cluster around it."""

from __future__ import annotations

from typing import Final

from tests.mutations.mutation import Mutation

REPLICATION: Final[tuple[Mutation, ...]] = (
    Mutation(
        "replication",
        "a produce that waits does not succeed in a later leader epoch",
        "broker/replication/partition.py",
        "        if self.role is Role.LEADER:\n",
        "        if False:\n",
        ("tests/unit/broker/replication/test_roles.py",),
    ),
    Mutation(
        "replication",
        "the sync of a follower does not raise the high watermark",
        "broker/replication/replicas.py",
        "            if partition is None or partition.log is not log or partition.refusal:\n",
        "            if partition is None or partition.log is not log:\n",
        ("tests/unit/broker/replication/test_roles.py",),
    ),
    Mutation(
        "replication",
        "a state with an older leader epoch is ignored",
        "core/replica/role.py",
        "    if newest.leader_epoch < present_epoch:\n        return None\n",
        "",
        ("tests/unit/core/replica/test_role.py",),
    ),
    Mutation(
        "replication",
        "the high watermark waits for the slowest in-sync replica",
        "core/replica/progress.py",
        "        least = min((self._of(",
        "        least = max((self._of(",
        ("tests/property/test_replicas.py",),
    ),
    Mutation(
        "replication",
        "a stored high watermark above the log end offset is not reached with other records",
        "core/log/upkeep/high_watermarks.py",
        "        if self._is_stored and self.of(log.topic_partition) > log.log_end_offset:\n",
        "        if False:\n",
        ("tests/unit/core/log/upkeep/test_high_watermarks.py",),
    ),
    Mutation(
        "replication",
        "a new leader reports no latest offset below the start of its leader epoch",
        "broker/handlers/list_offsets.py",
        "        if is_behind:\n            raise _not_available(partition, version)\n        return end",
        "        return end",
        ("tests/unit/broker/replication/test_roles.py",),
    ),
    Mutation(
        "replication",
        "a change of the ISR checks the registration of the leader",
        "broker/replication/isr_changes.py",
        "            self._registration(self._replicas.broker_id),\n",
        "",
        ("tests/unit/broker/replication/test_replication.py",),
    ),
    Mutation(
        "replication",
        "a commit of the controller checks the controller epoch",
        "core/cluster/controller.py",
        "        yield Commit([controller_epoch, *states, *registrations], [",
        "        yield Commit([*states, *registrations], [",
        ("tests/unit/broker/cluster/test_control.py", "tests/property/test_controller.py"),
    ),
    Mutation(
        "replication",
        "only the leader applies retention",
        "broker/replication/partition.py",
        "        self.log.follows = True\n",
        "",
        ("tests/unit/broker/replication/test_roles.py",),
    ),
    Mutation(
        "replication",
        "files of a topic without a tombstone stay",
        "broker/partitions/topic_store.py",
        "        return self._image.get(DELETED + topic_id.hex()) is not None\n",
        "        return True\n",
        ("tests/unit/broker/partitions/test_skipped_states_of_topics.py",),
    ),
    Mutation(
        "replication",
        "files of an earlier topic with the same name are set aside",
        "core/log/upkeep/deletions.py",
        "        if found is not None and found != topic_id:\n",
        "        if False:\n",
        ("tests/unit/core/log/test_log_manager.py",),
    ),
)
