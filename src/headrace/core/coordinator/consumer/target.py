"""The target of a consumer group: who is to read what, once everybody has got there."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping

from headrace.core.coordinator.state.assignors import OWN_ASSIGNORS, Assignor, Subscriber
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
    members: Iterable[MemberMetadata], assignors: Mapping[str, Assignor]
) -> Assignor:
    """Return the assignor that most members ask for, or the first one if none asks."""
    votes = Counter(member.assignor for member in members if member.assignor in assignors)
    default = next(iter(assignors))
    name = max(votes, key=lambda vote: (votes[vote], str(vote)), default=default)
    return assignors[name or default]


def compute_target(
    members: Mapping[str, MemberMetadata],
    regexes: Mapping[str, tuple[str, ...]],
    targets: Targets,
    *,
    assignors: Mapping[str, Assignor],
    view: TopicsView,
    journal: Journal,
) -> Targets:
    """Return a new target.

    Args:
        members: The members.
        regexes: The topics that each regular expression stands for.
        targets: The present target.
        assignors: By name, the default first.
        view: The topics.
        journal: Where it is reported when an assignor fails.

    Raises:
        ApiError: A user's assignor failed.
    """
    wishes = {wish_of(member) for member in members.values()}
    topics = known_topics(view, topics_of(wishes, regexes))
    # Few subscriptions differ, so that members share what they stand for.
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
    """Yield what writes a target down, where it differs from what is stored."""
    for member_id, partitions in targets.items():
        if group.targets.get(member_id) != partitions:
            yield TargetMember(group.group_id, member_id, partitions)
    yield TargetEpoch(group.group_id, epoch, now_ms)


def _by_users_assignor(
    assignor: Assignor,
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
            f"the assignor {assignor.name!r} failed; the broker's log says how",
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
                raise ValueError(f"there is no partition {index} of topic id {topic_id.hex()}")
            if topic_id not in subscribers[member_id].topics:
                raise ValueError(f"{member_id} does not want topic id {topic_id.hex()}")
            if (topic_id, index) in seen:
                raise ValueError(f"partition {index} of topic id {topic_id.hex()} is given twice")
            seen.add((topic_id, index))
