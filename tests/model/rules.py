"""The rules of the protocol, each of which can be switched off, and the bounds of a search."""

from __future__ import annotations

from dataclasses import dataclass, fields


@dataclass(frozen=True, slots=True)
class Rules:
    """The rules. `python -m tests.model --without RULE` switches one off.

    Attributes:
        shrink_counts_when_stored: A replica counts for the high watermark until the store has the smaller ISR.
        expansion_counts_while_pending: A replica counts for the high watermark from the proposal to add it on.
        one_proposal_at_a_time: The leader proposes nothing while the outcome of a proposal is unknown.
        unknown_is_settled: A proposal with an unknown outcome is made void, or found in the store, before it is over.
        proposal_checks_version: The commit of a proposal checks the version of the state.
        proposal_checks_own_registration: The commit of a proposal checks the registration of the leader.
        expansion_checks_registration: The commit that adds a replica checks the broker epoch of the replica's fetch.
        expansion_reaches_high_watermark: A replica joins the ISR if its progress has reached the high watermark.
        expansion_reaches_epoch_start: A replica joins the ISR if its progress has reached the start of the epoch.
        expansion_reaches_log_start: A replica joins the ISR if its log start has reached the log start of the leader.
        progress_ends_with_epoch: A new leader knows the progress of no follower.
        high_watermark_freezes: The high watermark stays while the ISR is below `min.insync.replicas`.
        freeze_counts_committed_isr: That ISR is the committed one, not the maximal ISR.
        fetch_checks_epoch: The leader refuses a fetch of another leader epoch.
        fetch_checks_registration: The leader refuses a fetch with an older broker epoch than the follower's last one.
        fetch_checks_divergence: The leader compares the last fetched epoch with its log before the fetch counts.
        truncates_by_epoch: A follower truncates where the leader's log diverges, and not to its high watermark.
        truncates_before_high_watermark: A response with a divergence does not change the high watermark.
        response_belongs_to_epoch: A follower ignores responses of another leader epoch.
        response_belongs_to_request: A follower ignores responses to requests with another fetch offset.
        reports_what_is_synced: A follower's fetch offset is its synced end (`Bounds.syncs`).
        leader_counts_what_is_synced: The leader counts its own replica up to its synced end (`Bounds.syncs`).
        unclean_start_leaves: A broker that has lost the end of its log leaves ISR and ELR, unless its mark says that
            all records are synced before they are acknowledged.
        unclean_start_asks_mark: The broker asks that mark, and not the topic's setting.
        registers_before_leaving: That broker registers first, which makes expansions for its last process void.
        leaving_begins_epoch: The commit with which a broker leaves begins another leader epoch.
        elects_from_isr: The controller elects members of ISR and ELR only.
        election_checks_version: The commit of an election checks the version of the state.
        election_checks_registration: The commit of an election checks the registration of the previous leader.
        election_epoch_is_above_present: The epoch of an election follows the present epoch, not the stored one.
        isr_change_stores_present_epoch: A stored ISR change has the present leader epoch, not the stored one.
        reassignment_stores_state: A commit that changes the replicas stores the state if none is stored.
        reassignment_checks_version: A commit that changes the replicas checks the version of the state.
        image_is_a_prefix: A broker derives its role from all commits before its registration, and the registration.
        start_follows_leader: A follower's log start offset is the leader's.
    """

    shrink_counts_when_stored: bool = True
    expansion_counts_while_pending: bool = True
    one_proposal_at_a_time: bool = True
    unknown_is_settled: bool = True
    proposal_checks_version: bool = True
    proposal_checks_own_registration: bool = True
    expansion_checks_registration: bool = True
    expansion_reaches_high_watermark: bool = True
    expansion_reaches_epoch_start: bool = True
    expansion_reaches_log_start: bool = True
    progress_ends_with_epoch: bool = True
    high_watermark_freezes: bool = True
    freeze_counts_committed_isr: bool = True
    fetch_checks_epoch: bool = True
    fetch_checks_registration: bool = True
    fetch_checks_divergence: bool = True
    truncates_by_epoch: bool = True
    truncates_before_high_watermark: bool = True
    response_belongs_to_epoch: bool = True
    response_belongs_to_request: bool = True
    reports_what_is_synced: bool = True
    leader_counts_what_is_synced: bool = True
    unclean_start_leaves: bool = True
    unclean_start_asks_mark: bool = True
    registers_before_leaving: bool = True
    leaving_begins_epoch: bool = True
    elects_from_isr: bool = True
    election_checks_version: bool = True
    election_checks_registration: bool = True
    election_epoch_is_above_present: bool = True
    isr_change_stores_present_epoch: bool = True
    reassignment_stores_state: bool = True
    reassignment_checks_version: bool = True
    image_is_a_prefix: bool = True
    start_follows_leader: bool = True


ALL = Rules()
NAMES = tuple(field.name for field in fields(Rules))


@dataclass(frozen=True, slots=True)
class Bounds:
    """The bounds of a search, and the faults that it contains.

    Attributes:
        brokers: The number of brokers.
        assigned: The number of replicas at the beginning: the first brokers.
        end: The greatest log end offset.
        epochs: The greatest leader epoch. The first one is 1.
        broker_epochs: The greatest broker epoch. Each broker begins at 1.
        versions: The greatest version of the partition's state.
        controllers: The number of brokers that take themselves for the controller.
        min_isr: The setting `min.insync.replicas`.
        syncs: Whether records are synced before they are acknowledged at the beginning (`durability=fsync`).
        switches: The number of changes of that setting.
        power_cuts: The number of power cuts.
        loses_session: Whether a running broker may lose its session and register again.
        in_flight: The number of requests, and of responses, of one follower that are in flight at a time.
        late_requests: Whether a request is handled at another time than it is sent.
        repeats: Whether a response may arrive twice.
        one_by_one: Whether a response has at most one record.
        deletes: Whether the leader deletes records.
        reassigns: Whether the replicas change.
    """

    brokers: int = 2
    assigned: int = 2
    end: int = 2
    epochs: int = 2
    broker_epochs: int = 2
    versions: int = 3
    controllers: int = 1
    min_isr: int = 1
    syncs: bool = False
    switches: int = 0
    power_cuts: int = 0
    loses_session: bool = True
    in_flight: int = 1
    late_requests: bool = False
    repeats: bool = False
    one_by_one: bool = False
    deletes: bool = False
    reassigns: bool = False
