"""The computation of the target assignment of a consumer group."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping

from headrace.core.coordinator.state.assignors import OWN_ASSIGNORS, ServerAssignor, Subscriber
from headrace.core.coordinator.state.consumer_group import (
    NOTHING_ASSIGNED,
    ConsumerGroup,
    Wish,
    topics_of,
    wish_of,
)
from headrace.core.coordinator.state.consumer_records import (
    ConsumerRecord,
    MemberMetadata,
    Partition,
    Partitions,
    TargetEpoch,
    TargetMember,
)
from headrace.core.coordinator.state.topics import TopicsView, known_topics
from headrace.errors import ApiError, ErrorCode
from headrace.ports import Journal

Targets = Mapping[str, Partitions]


def choose_assignor(
    members: Iterable[MemberMetadata], assignors: Mapping[str, ServerAssignor]
) -> ServerAssignor:
    """Return the assignor that most members request, or the first assignor if no member requests one."""
    votes = Counter(member.assignor for member in members if member.assignor in assignors)
    default = next(iter(assignors))
    name = max(votes, key=lambda vote: (votes[vote], str(vote)), default=default)
    return assignors[name or default]


def compute_target(
    members: Mapping[str, MemberMetadata],
    regexes: Mapping[str, tuple[str, ...]],
    targets: Targets,
    *,
    assignors: Mapping[str, ServerAssignor],
    view: TopicsView,
    journal: Journal,
) -> Targets:
    """Return a new target assignment of all members.

    Args:
        members: The metadata of the members, by member id.
        regexes: The topics that each regular expression matches.
        targets: The present target assignment.
        assignors: The assignors by name, the default first.
        view: The topics.
        journal: Logs the failure of an assignor.

    Raises:
        ApiError: A user's assignor failed.
    """
    wishes = {wish_of(member) for member in members.values()}
    topics = known_topics(view, topics_of(wishes, regexes))
    # A group has few different subscriptions, so the topics of each are computed once.
    wanted: dict[Wish, frozenset[bytes]] = {
        wish: frozenset(
            topics[name].topic_id for name in topics_of([wish], regexes) if name in topics
        )
        for wish in wishes
    }
    subscribers = {
        member_id: Subscriber(
            wanted[wish_of(member)],
            targets.get(member_id, NOTHING_ASSIGNED),
            member.instance_id,
            member.rack_id,
        )
        for member_id, member in members.items()
    }
    counts = {info.topic_id: info.partitions_count for _, info in sorted(topics.items())}
    assignor = choose_assignor(members.values(), assignors)
    if OWN_ASSIGNORS.get(assignor.name) is assignor:
        assignment = assignor.assign(subscribers, counts)
    else:
        assignment = _by_users_assignor(assignor, subscribers, counts, journal)
    return {member_id: frozenset(assignment.get(member_id, ())) for member_id in members}


def target_records(
    group: ConsumerGroup, targets: Targets, epoch: int, now_ms: int
) -> Iterator[ConsumerRecord]:
    """Yield the records of a new target assignment, for members whose target has changed."""
    for member_id, partitions in targets.items():
        if group.targets.get(member_id) != partitions:
            yield TargetMember(group.group_id, member_id, partitions)
    yield TargetEpoch(group.group_id, epoch, now_ms)


def _by_users_assignor(
    assignor: ServerAssignor,
    subscribers: Mapping[str, Subscriber],
    counts: Mapping[bytes, int],
    journal: Journal,
) -> Mapping[str, Collection[Partition]]:
    try:
        assignment = assignor.assign(subscribers, counts)
        _check(assignment, subscribers, counts)
    except Exception as error:
        journal.error("consumer_group_assignor_failed", assignor=assignor.name, error=repr(error))
        raise ApiError(
            ErrorCode.UNKNOWN_SERVER_ERROR,
            f"the assignor {assignor.name!r} failed. The broker's log has the error.",
        ) from error
    return assignment


def _check(
    assignment: Mapping[str, Collection[Partition]],
    subscribers: Mapping[str, Subscriber],
    counts: Mapping[bytes, int],
) -> None:
    seen: set[Partition] = set()
    for member_id, partitions in assignment.items():
        for topic_id, index in partitions:
            if not 0 <= index < counts.get(topic_id, 0):
                raise ValueError(f"topic id {topic_id.hex()} has no partition {index}")
            if topic_id not in subscribers[member_id].topics:
                raise ValueError(f"{member_id} is not subscribed to topic id {topic_id.hex()}")
            if (topic_id, index) in seen:
                raise ValueError(
                    f"partition {index} of topic id {topic_id.hex()} is assigned twice"
                )
            seen.add((topic_id, index))
