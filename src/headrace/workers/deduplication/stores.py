"""Selects the store of keys for the argument `seen=`."""

from __future__ import annotations

from collections.abc import Collection

from headrace.workers.deduplication.declared import SeenFile, SeenTopic
from headrace.workers.deduplication.file_keys import FileKeys
from headrace.workers.deduplication.keys import KeyStore, SeenKeys
from headrace.workers.deduplication.program_keys import ProgramKeys
from headrace.workers.deduplication.recent_keys import RecentKeys
from headrace.workers.deduplication.topic_keys import TopicKeys
from headrace.workers.output.outlet import Outlet


def open_keys(
    seen: SeenKeys | SeenTopic | SeenFile | None,
    outlet: Outlet,
    *,
    group: str,
    worker: str,
    sources: Collection[str],
) -> KeyStore:
    """Return the store of a worker's keys.

    Args:
        seen: The value of `seen=`; None keeps keys in memory.
        outlet: Writes keys to a topic, and has the clock.
        group: The worker's group.
        worker: The worker's name.
        sources: The topics that the worker names; empty if it reads topics by a pattern.
    """
    if seen is None:
        return RecentKeys()
    if isinstance(seen, SeenTopic):
        return TopicKeys(seen, outlet, group=group, worker=worker, sources=sources)
    if isinstance(seen, SeenFile):
        return FileKeys(seen, outlet.now_ms, group=group, worker=worker)
    return ProgramKeys(seen, worker)
