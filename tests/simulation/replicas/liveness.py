"""The state of a cluster that has settled: every partition has a leader, and all replicas have all records."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.core.cluster.records import PartitionState
from headrace.core.replica.role import Role
from tests.simulation.replicas.disk import Key

if TYPE_CHECKING:
    from tests.simulation.replicas.replica_simulation import ReplicaSimulation


def unsettled(simulation: ReplicaSimulation) -> str:
    """Return what is not true yet; "" if nothing is missing."""
    checker = simulation.checker
    if len(checker.membership.live) < len(simulation.disks):
        return f"live are {list(checker.membership.live)}"
    if not all(former.is_dead for former in simulation.former):
        return "a process runs on although another one of its broker has begun"
    if checker.membership.controller_id < 0:
        return "there is no controller"
    for key, replicas in checker.replicas.items():
        state = checker.state(key)
        problem = _unled(simulation, key, state, replicas) or _behind(
            simulation, key, state, replicas
        )
        if problem:
            return f"{key[0].hex()}-{key[1]} with {replicas} and {state}: {problem}"
    return ""


def _unled(
    simulation: ReplicaSimulation, key: Key, state: PartitionState, replicas: tuple[int, ...]
) -> str:
    if state.leader < 0:
        return "no broker leads"
    if set(state.isr) != set(replicas):
        return "not all replicas are in sync"
    leader = simulation.processes[state.leader].partitions.get(key)
    if leader is None or leader.role is not Role.LEADER:
        return "the leader does not know that it leads"
    return ""


def _behind(
    simulation: ReplicaSimulation, key: Key, state: PartitionState, replicas: tuple[int, ...]
) -> str:
    end = simulation.processes[state.leader].partitions[key].log.log_end_offset
    for broker in replicas:
        partition = simulation.processes[broker].partitions.get(key)
        if partition is None:
            return f"broker {broker} does not know the partition"
        log = partition.log
        if not end == log.log_end_offset == log.high_watermark:
            return f"broker {broker} has {log.high_watermark} and {log.log_end_offset} of {end}"
    return ""
