"""A state of the model: the metadata store, the replicas of one partition, what is in flight, and what was committed.

All parts are tuples, so a state is hashable, and states share the parts that a step does not change. A set of brokers
is a bit mask: broker *b* is the bit `1 << b`. A record is the leader epoch that wrote it. `checks.py` checks that in
one leader epoch one process writes each offset once. So a log is a tuple of leader epochs, from the log start on.
"""

from __future__ import annotations

from typing import Final, NamedTuple

NOBODY: Final = -1
"""The leader of a partition that no broker leads, and of a replica that knows no leader."""
UNKNOWN: Final = -1
"""The progress of a replica that has not fetched in this leader epoch; the last epoch of an empty log."""

RUNNING: Final = 0
"""The broker is registered, and acts in the role that it knows."""
UNCLEAN: Final = 1
"""The broker has lost the end of its log, and has neither registered nor left the ISR since."""
LEFT: Final = 2
"""The broker has left the ISR after an unclean start, and is not registered yet."""
MUST_LEAVE: Final = 3
"""The broker is registered after an unclean start, and has not left the ISR yet."""


class Leadership(NamedTuple):
    """The fields of `PartitionState`: the leader, its leader epoch, ISR and ELR, and the leader's broker epoch."""

    leader: int
    epoch: int
    isr: int
    elr: int
    registration: int


class Metadata(NamedTuple):
    """The metadata store.

    Attributes:
        version: The version of the partition's state; 0 if no state is stored.
        stored: The stored state; it has no meaning at version 0.
        replicas: The replicas of the partition. The first one leads while no state is stored.
        registrations: The broker epoch of each broker.
    """

    version: int
    stored: Leadership
    replicas: tuple[int, ...]
    registrations: tuple[int, ...]


class Pending(NamedTuple):
    """The leader's proposal whose outcome the leader does not know.

    Attributes:
        isr: The proposed ISR.
        elr: The ELR that follows.
        is_stored: Whether the store has it. The leader learns this when it settles the proposal.
    """

    isr: int
    elr: int
    is_stored: bool


class Lead(NamedTuple):
    """The knowledge of a leader in one leader epoch.

    Attributes:
        version: The version of the state that the leader knows.
        isr: The committed ISR.
        elr: The committed ELR.
        pending: The proposal in flight; None if there is none.
        ends: The progress of each broker.
        broker_epochs: The broker epoch in the last fetch of each broker.
        starts: The log start offset in the last fetch of each broker.
        epoch_start: The leader's log end offset when the leader epoch began.
    """

    version: int
    isr: int
    elr: int
    pending: Pending | None
    ends: tuple[int, ...]
    broker_epochs: tuple[int, ...]
    starts: tuple[int, ...]
    epoch_start: int


class Replica(NamedTuple):
    """A broker and its replica.

    Attributes:
        phase: `RUNNING`, or how far an unclean start has come.
        broker_epoch: The broker epoch of the process; 0 if it is not registered.
        leader: The leader that the broker knows; the broker itself if it leads.
        epoch: The leader epoch of the role; 0 without a role.
        log: The records from the log start offset on.
        start: The log start offset.
        high_watermark: The high watermark.
        synced: The end offset of what a power cut leaves. It stays 0 while records are not synced.
        lead: What the broker knows as the leader; None if it does not lead.
        seen: The version and state that the broker has read last. Only without the rule `image_is_a_prefix`.
        syncs: Whether records are synced before they are acknowledged, as far as the broker knows.
        marked: Whether a mark beside the log says that all records are synced before they are acknowledged.
    """

    phase: int
    broker_epoch: int
    leader: int
    epoch: int
    log: tuple[int, ...]
    start: int
    high_watermark: int
    synced: int
    lead: Lead | None
    seen: tuple[int, Leadership] | None
    syncs: bool = False
    marked: bool = False

    @property
    def end(self) -> int:
        """The log end offset."""
        return self.start + len(self.log)

    @property
    def last_epoch(self) -> int:
        """The leader epoch of the last record; -1 if there is none."""
        return self.log[-1] if self.log else UNKNOWN


class Commit(NamedTuple):
    """A commit that is in flight to the metadata store.

    Attributes:
        sender: The broker whose proposal it is; -1 - *c* for the controller *c*.
        version: The version of the state that it replaces; -1 if it is not checked.
        checked: The brokers whose registrations are checked, with their broker epochs.
        state: The new state; None for a commit that changes the replicas only.
        replicas: The new replicas; empty if they stay.
    """

    sender: int
    version: int
    checked: tuple[tuple[int, int], ...]
    state: Leadership | None
    replicas: tuple[int, ...]


class Request(NamedTuple):
    """A Fetch request of a follower."""

    leader: int
    epoch: int
    offset: int
    last_epoch: int
    broker_epoch: int
    start: int


class Response(NamedTuple):
    """The response to a Fetch request.

    Attributes:
        epoch: The leader epoch of the request.
        offset: The fetch offset of the request.
        last_epoch: The last fetched epoch of the request.
        diverging_epoch: The largest epoch of the leader up to `last_epoch`; -1 if the logs do not diverge.
        diverging_end: The end offset of that epoch.
        records: The records from the fetch offset on.
        high_watermark: The leader's high watermark.
        start: The leader's log start offset. Above `offset` it means OFFSET_OUT_OF_RANGE.
    """

    epoch: int
    offset: int
    last_epoch: int
    diverging_epoch: int
    diverging_end: int
    records: tuple[int, ...]
    high_watermark: int
    start: int


class State(NamedTuple):
    """A state of the model.

    Attributes:
        metadata: The metadata store.
        replicas: The brokers, by broker id.
        commits: The commits in flight, sorted.
        requests: The requests of each follower that are in flight, the oldest one first.
        responses: The responses to each follower that are in flight, the oldest one first.
        committed: The records that any leader had below its high watermark, from offset 0 on.
        deleted: The greatest log start offset that a leader has chosen.
        power_cuts: The number of power cuts.
        syncs: Whether the topic's records are synced before they are acknowledged.
        switches: The number of changes of `syncs`.
    """

    metadata: Metadata
    replicas: tuple[Replica, ...]
    commits: tuple[Commit, ...]
    requests: tuple[tuple[Request, ...], ...]
    responses: tuple[tuple[Response, ...], ...]
    committed: tuple[int, ...]
    deleted: int
    power_cuts: int
    syncs: bool
    switches: int


def present(metadata: Metadata) -> Leadership:
    """Return the present state of the partition, as `headrace.core.cluster.partition_states.present_state` does."""
    return present_of(metadata.version, metadata.stored, metadata)


def present_of(version: int, stored: Leadership, metadata: Metadata) -> Leadership:
    """Return the state that follows from a stored state and the registrations."""
    registrations = metadata.registrations
    if not version:
        leader = metadata.replicas[0]
        epoch = registrations[leader]
        return Leadership(leader, epoch, mask(metadata.replicas), 0, epoch)
    leader, epoch, isr, elr, registration = stored
    starts = registrations[leader] - registration if leader >= 0 else 0
    if starts <= 0:
        return stored
    return Leadership(leader, epoch + starts, isr, elr, registration + starts)


def mask(brokers: tuple[int, ...]) -> int:
    """Return a set of brokers."""
    return sum(1 << broker for broker in brokers)


MEMBERS: Final = tuple(tuple(b for b in range(4) if isr >> b & 1) for isr in range(16))
"""The brokers of each set."""


def changed(items: tuple[object, ...], index: int, item: object) -> tuple:
    """Return a tuple with one item replaced."""
    return (*items[:index], item, *items[index + 1 :])


def is_possible(commit: Commit, metadata: Metadata) -> bool:
    """Return whether the checks of a commit hold. If they do not, they will never hold again: versions only rise."""
    if commit.version not in (metadata.version, -1):
        return False
    registrations = metadata.registrations
    return all(registrations[broker] == epoch for broker, epoch in commit.checked)
