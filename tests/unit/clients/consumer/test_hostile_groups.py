"""Data that other clients of a group send to its members: none of it stops the group or costs too much."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from headrace.clients.assignors import StickyAssignor
from headrace.clients.assignors import balance as balances
from headrace.clients.assignors.balance import _Takers, balance
from headrace.clients.assignors.base import ExistingPartitions, MemberSubscription
from headrace.clients.assignors.sticky import decode_history, encode_history
from headrace.clients.config import ConsumerConfig
from headrace.clients.consumer import member_metadata
from headrace.clients.consumer.classic import ClassicProtocolMember
from headrace.clients.consumer.member_metadata import accepted, read_members, read_topics
from headrace.clients.consumer.subscribed_topics import TOPICS_NAMED, SubscribedTopics
from headrace.clients.consumer.subscription import ConsumerSubscription
from headrace.clients.engine import Engine
from headrace.clients.flows.classic_group import encode_subscription
from headrace.errors import ErrorCode, ProtocolError
from headrace.protocol.messages.join_group import JoinGroupResponse, JoinGroupResponseMember
from headrace.protocol.messages.metadata import MetadataRequest, MetadataResponse
from headrace.types import TopicPartition
from tests.unit.clients.consumer.test_member import Group, Home, Silent, join_group
from tests.unit.clients.flows.test_groups import coordinated
from tests.unit.clients.scripted import ScriptedDriver, known_state


def joined(**blobs: bytes) -> JoinGroupResponse:
    members = [
        JoinGroupResponseMember(member_id=name, metadata=blob) for name, blob in blobs.items()
    ]
    return JoinGroupResponse(members=members)


def test_a_subscription_that_cannot_be_read_takes_partitions_from_its_member_alone() -> None:
    warned: list[str] = []
    good = encode_subscription(["t"])
    answer = joined(a=b"", b=good, c=good[:-3], d=b"\0\1\x7f\xff\xff\xff")
    topics = read_topics(answer, warned.append)
    assert topics == {"b": {"t"}}
    assert [text.split(":")[0] for text in warned] == [
        f"member '{name}' gets no partitions" for name in "acd"
    ]
    members = read_members(answer, topics, {"t": 4})
    assert {name: member.topics for name, member in members.items()} == {
        "a": frozenset(),
        "b": {"t"},
        "c": frozenset(),
        "d": frozenset(),
    }


def test_members_with_few_topics_keep_them_when_another_names_too_many(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(member_metadata, "MAX_GROUP_TOPICS", 10)
    warned: list[str] = []
    answer = joined(
        many=encode_subscription([f"x{number}" for number in range(9)]),
        few=encode_subscription(["t", "u"]),
        same=encode_subscription(["u", "t"]),
    )
    assert read_topics(answer, warned.append).keys() == {"few", "same"}
    assert "'many' gets no partitions: with its 9 topics" in warned[0]


def test_owned_partitions_that_do_not_exist_or_repeat_are_ignored() -> None:
    owned = [TopicPartition("t", number) for number in (0, 0, 1, 3, 4, -1)]
    owned += [TopicPartition("none", 0)]
    blob = encode_subscription(["t"], owned=owned * 3, generation=5)
    answer = joined(a=blob, b=blob)
    topics = read_topics(answer, pytest.fail)
    members = read_members(answer, topics, {"t": 4})
    assert members["a"].owned == (("t", 0), ("t", 1), ("t", 3))
    first, second = members["a"].owned[0], members["b"].owned[0]
    assert first is second, "claims of many members are references to one object"


def test_a_sticky_history_keeps_each_existing_partition_once() -> None:
    existing = ExistingPartitions({"t": 2})
    claim = encode_history([TopicPartition("t", number) for number in range(5)], 7)
    assert decode_history(claim, existing) == (7, (("t", 0), ("t", 1)))
    repeated = struct.pack(">ih1si", 1, 1, b"t", 50_000) + struct.pack(">i", 1) * 50_000
    assert decode_history(repeated + struct.pack(">i", 9), existing) == (9, (("t", 1),))


@pytest.mark.parametrize("topics", [1, 300])
def test_a_claim_of_everything_costs_a_move_for_each_partition(
    monkeypatch: pytest.MonkeyPatch, topics: int
) -> None:
    looked: list[Any] = []
    least = _Takers.least

    def counted(takers: _Takers, sizes: Mapping[str, int]) -> str:
        looked.append(takers)
        return least(takers, sizes)

    monkeypatch.setattr(_Takers, "least", counted)
    counts = {f"t{number:03}": 3000 // topics for number in range(topics)}
    partitions = tuple(TopicPartition(name, n) for name in counts for n in range(counts[name]))
    members = {f"m{number}": MemberSubscription(frozenset(counts)) for number in range(3)}
    divided = balance(members, counts, {"m0": (2**31 - 1, partitions)})
    assert [len(part) for part in divided.values()] == [1000] * 3
    assert set(divided["m0"]) < set(partitions)
    assert {name for name, _ in divided["m0"]} == set(counts), "it keeps a bit of each topic"
    assert len(looked) <= 2000 + 3 * 3


def test_members_that_want_very_different_topics_are_divided_in_bounded_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(balances, "MAX_STEPS", 400)
    counts = {f"t{number}": 4 for number in range(64)}
    members = {"m": MemberSubscription(frozenset(counts))}
    for bit in range(6):
        wanted = frozenset(f"t{number}" for number in range(64) if number >> bit & 1)
        members[f"n{bit}"] = MemberSubscription(wanted)
    partitions = tuple(TopicPartition(name, n) for name in counts for n in range(4))
    divided = balance(members, counts, {"m": (2**31 - 1, partitions)})
    assert sorted(each for part in divided.values() for each in part) == sorted(partitions)
    assert all(
        name in members[member].topics for member, part in divided.items() for name, _ in part
    )
    assert max(map(len, divided.values())) <= 256 // 7 + 10


class Taken(Home):
    """A consumer that records the problems of its subscription."""

    def __init__(self) -> None:
        self.warnings: list[str] = []

    def warn(self, text: str) -> None:
        self.warnings.append(text)


def member_of(group: Group, home: Any) -> tuple[ClassicProtocolMember, ScriptedDriver]:
    driver = ScriptedDriver(coordinated(group.answer))
    engine = Engine(
        known_state({}), Silent(), now_ms=0, request_timeout_ms=1000, jitter=lambda: 1.0
    )
    config = ConsumerConfig(group_id="g")
    return ClassicProtocolMember(engine, config, [StickyAssignor()], home, home), driver


def test_a_member_reads_no_topic_that_it_did_not_ask_for() -> None:
    warned: list[str] = []
    given = [TopicPartition("t", 1), TopicPartition("secret", 0), TopicPartition("t", -1)]
    assert accepted("g", given * 2, frozenset("t"), warned.append) == [("t", 1)]
    [text] = warned
    assert text.startswith(
        "the leader of group 'g' gave this member secret-0, and 1 others, to which"
    )


def test_a_member_takes_no_more_partitions_than_any_topic_has(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(member_metadata, "MAX_ASSIGNED", 10)
    given = [TopicPartition("t", number) for number in range(11)]
    with pytest.raises(ProtocolError, match="gave this member 11 partitions; 10 are the most"):
        accepted("g", given, frozenset("t"), pytest.fail)


def test_an_assignor_that_the_member_did_not_name_is_an_error() -> None:
    member, driver = member_of(Group(), Taken())  # which chooses range
    with pytest.raises(
        ProtocolError, match="chose the assignor 'range', which this member did not"
    ):
        driver.run(member._converse())


def test_a_coordinator_that_asks_for_an_id_for_ever_is_asked_after_pauses() -> None:
    group = Group(join_codes=[ErrorCode.MEMBER_ID_REQUIRED] * 5)
    _, _, driver = join_group(group)
    assert len(group.members) == 6
    assert len(driver.sleeps) == 4, "the first answer is as it should be"


def asked(topics: Sequence[str], own: frozenset[str], **options: Any) -> list[tuple[Any, bool]]:
    """The names of the topics that a leader asks about, and whether it has them created."""
    found: list[tuple[Any, bool]] = []

    def answer(call):
        request = call.request
        assert isinstance(request, MetadataRequest)
        names = None if request.topics is None else [topic.name for topic in request.topics]
        found.append((names, request.allow_auto_topic_creation))
        return MetadataResponse()

    state = known_state({})
    engine = Engine(state, Silent(), now_ms=0, request_timeout_ms=1000, jitter=lambda: 1.0)
    subscribed = SubscribedTopics(engine, ConsumerConfig(group_id="g", **options), {})
    subscribed.follow(ConsumerSubscription("topics", own))
    ScriptedDriver(answer).run(subscribed.count_partitions(frozenset(topics)))
    ScriptedDriver(answer).run(subscribed.question())
    return found


def test_a_leader_does_not_name_more_topics_than_brokers_take() -> None:
    names = [f"t{number}" for number in range(TOPICS_NAMED + 1)]
    assert asked(names[1:], frozenset()) == [(sorted(names[1:]), False)]
    assert asked(names, frozenset()) == [(None, False)]


def test_a_leader_creates_no_topics_for_others() -> None:
    found = asked(["own", "others"], frozenset({"own"}), allow_auto_create_topics=True)
    assert found == [(["own"], True), (["others", "own"], False)]
