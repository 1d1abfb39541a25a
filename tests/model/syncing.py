"""Records that are synced before they are acknowledged: syncs, changes of the setting, and the mark beside a log.

The mark says that every record which the replica has promised is synced. A broker makes the mark when its log is synced
to the end, and removes the mark before it promises what is not synced. Both survive a power cut.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from tests.model.leading import advanced
from tests.model.state import Replica, State

if TYPE_CHECKING:
    from tests.model.model import Model, Step


def steps(model: Model, state: State, broker: int, replica: Replica) -> Iterator[Step]:
    """Return the steps in which a broker syncs its log, makes the mark, or learns the setting."""
    if replica.syncs and replica.synced < replica.end:
        after = advanced(model, broker, replica._replace(synced=replica.end))
        yield (("sync", broker), *model.with_replica(state, broker, after))
    if replica.syncs and not replica.marked and replica.synced == replica.end:
        after = replica._replace(marked=True)
        yield (("mark", broker), *model.with_replica(state, broker, after))
    if replica.syncs != state.syncs:
        after = replica._replace(syncs=state.syncs, marked=replica.marked and state.syncs)
        after = advanced(model, broker, after)
        yield (("see setting", broker), *model.with_replica(state, broker, after))


def switch(model: Model, state: State) -> Iterator[Step]:
    """Return the step in which an operator changes whether records are synced first."""
    if state.switches < model.bounds.switches:
        after = state._replace(syncs=not state.syncs, switches=state.switches + 1)
        yield ("change setting",), after, ""
