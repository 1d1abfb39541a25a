"""Owners of a partition while the network is silent: in virtual time, with default time-outs, under both protocols."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from headrace.clients.consumer.session import MARGIN_SHARE
from headrace.clients.consumer.session_length import DEFAULT_SESSION_MS
from headrace.errors import ApiError, ErrorCode, HeadraceError, TransportError
from headrace.protocol.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from headrace.protocol.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResponse,
    DescribeConfigsResult,
)
from headrace.protocol.messages.heartbeat import HeartbeatRequest
from headrace.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from headrace.protocol.messages.join_group import JoinGroupRequest
from headrace.protocol.messages.offset_commit import OffsetCommitRequest
from headrace.types import TopicPartition
from tests.fixtures.consumer_simulation import SILENCE, ConsumerSimulation, Program, rebalance
from tests.unit.clients.consumer.test_groups import (
    COOPERATIVE,
    SERVER_SIDE,
    Listener,
    member,
    numbers,
)

pytestmark = pytest.mark.slow  # not in `make check`

PARTITIONS = [TopicPartition("t", number) for number in range(4)]
PROTOCOLS = ["range", *COOPERATIVE, SERVER_SIDE]
RECORDS = 300
"""The number of records in each partition."""
Silence = Callable[[ConsumerSimulation, "set[Program]"], None]


def cut(world: ConsumerSimulation, silent: set[Program]) -> None:
    """Refuse all connections of these programs."""
    error = TransportError("cannot connect")
    world.fault = lambda program, _: error if program in silent else None


def freeze(world: ConsumerSimulation, silent: set[Program]) -> None:
    """Drop all requests without an error, as a network does that fails silently."""
    world.fault = lambda program, _: SILENCE if program in silent else None


def half_open(world: ConsumerSimulation, silent: set[Program]) -> None:
    """Deliver requests, and drop their responses."""
    world.lost = lambda program, _: SILENCE if program in silent else None


def late(world: ConsumerSimulation, silent: set[Program]) -> None:
    """Delay answers for almost as long as a session lasts."""
    world.delay_ms = lambda program: 44_000 if program in silent else 0


def slow(world: ConsumerSimulation, silent: set[Program]) -> None:
    """Delay answers for longer than the interval of heartbeats."""
    world.delay_ms = lambda program: 8_000 if program in silent else 0


SILENCES: list[Silence] = [cut, freeze, half_open, late, slow]


def watched_world() -> ConsumerSimulation:
    """Return a simulated cluster in which no partition may have two owners at any moment."""
    world = ConsumerSimulation(group_consumer_heartbeat_interval_ms=5_000)  # Kafka's default
    world.broker.create_topic("t", partitions=len(PARTITIONS))

    def watch() -> None:
        for name in PARTITIONS:
            owners = [each for each in world.programs if each.core.holds(name, world.now_ms)]
            assert len(owners) <= 1, f"{name} has two owners at {world.now_ms}"

    world.watch = watch
    return world


def fill(world: ConsumerSimulation) -> None:
    world.fill("t", len(PARTITIONS), RECORDS)


def read(program: Program, seen: set[tuple[int, int]], records: int = 1) -> int:
    """Poll once; a record that is returned must belong to a partition that the consumer owns at that moment."""
    try:
        found = program.poll(20, records)
    except HeadraceError:
        return 0
    for record in found:
        name = TopicPartition(record.topic, record.partition)
        assert program.core.holds(name, program._world.now_ms), f"{name} is another's"
        seen.add((record.partition, record.offset))
    return len(found)


def drain(world: ConsumerSimulation, programs: list[Program], seen: set[tuple[int, int]]) -> None:
    """Read all records with a working network."""
    total = len(PARTITIONS) * RECORDS
    for _ in range(400):
        for program in programs:
            read(program, seen, 100)
        if len(seen) == total and all(program.core.joined for program in programs):
            return
        world.advance(500)
    raise AssertionError(f"{total - len(seen)} records were not read")


@pytest.mark.parametrize("silence", SILENCES)
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_member_without_answers_owns_nothing_before_another_member_does(
    protocol: str, silence: Silence
) -> None:
    world = watched_world()
    silent: set[Program] = set()
    listener = Listener()
    first, second = member(world, protocol, listener=listener), member(world, protocol)
    rebalance(first, second, rounds=30)
    fill(world)
    seen: set[tuple[int, int]] = set()
    assert read(first, seen)
    assert read(second, seen)
    silence(world, silent)
    silent.add(first)
    for _ in range(150):  # 75 s
        read(first, seen)
        read(second, seen)
        world.advance(500)
    if silence is not slow:
        assert listener.told[-1][0] == "lost"
        assert numbers(first) == []
        assert numbers(second) == list(range(len(PARTITIONS)))
        assert any("acknowledged" in text for text in first.warnings)
    silent.clear()
    drain(world, [first, second], seen)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_the_session_counts_from_when_a_heartbeat_was_sent(protocol: str) -> None:
    world = watched_world()
    first = member(world, protocol)
    rebalance(first)
    beats = (HeartbeatRequest, ConsumerGroupHeartbeatRequest)
    sent: list[int] = []

    def note(program: Program, call: Any) -> None:
        if isinstance(call.request, beats) and not silent:
            sent.append(world.now_ms)

    silent: set[Program] = set()
    world.fault = note
    world.delay_ms = lambda _: 2_000
    world.advance(30_000)
    silent.add(first)
    world.fault = lambda program, call: SILENCE
    own = first.core._member
    assert own is not None
    last = sent[-1]
    world.advance(last + 45_000 - 45_000 // MARGIN_SHARE - 1 - world.now_ms)
    assert first.core._member is own
    assert own.generation >= 0
    world.advance(1)
    assert own.generation == -1, "nothing was acknowledged that was sent later"
    assert own.lost is not None


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_commits_are_refused_without_asking_when_the_session_is_over(protocol: str) -> None:
    world = watched_world()
    silent: set[Program] = set()
    first = member(world, protocol, enable_auto_commit=False)
    rebalance(first)
    fill(world)
    assert first.poll(1_000, 5)
    freeze(world, silent)
    silent.add(first)
    world.advance(46_000)
    first.calls.clear()
    with pytest.raises(ApiError) as raised:
        first.commit()
    assert raised.value.code == ErrorCode.UNKNOWN_MEMBER_ID
    assert first.requests(OffsetCommitRequest) == []


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_silent_member_keeps_its_group_metadata_until_the_next_join(protocol: str) -> None:
    world = watched_world()
    silent: set[Program] = set()
    first = member(world, protocol, enable_auto_commit=False)
    rebalance(first)
    before = first.core.group_metadata()
    assert before.generation_id >= 0
    freeze(world, silent)
    silent.add(first)
    world.advance(60_000)
    assert first.core.group_metadata() == before, "an empty group would take what names no member"
    silent.clear()
    rebalance(first)
    assert first.core.group_metadata().generation_id > before.generation_id


# The length of the session


def test_a_member_of_the_new_protocol_asks_how_long_its_session_lasts() -> None:
    world = ConsumerSimulation(
        group_consumer_session_timeout_ms=10_000,
        group_consumer_min_session_timeout_ms=10_000,
        group_consumer_heartbeat_interval_ms=3_000,
    )
    world.broker.create_topic("t")
    first = member(world, SERVER_SIDE)
    rebalance(first)
    assert first.core._member is not None
    assert first.core._member.session_ms == 10_000
    [asked] = first.requests(DescribeConfigsRequest)
    assert asked.resources[0].resource_type == 32


@pytest.mark.parametrize(
    ("interval_ms", "guess_ms"), [(3_000, 27_000), (5_000, 45_000), (15_000, 45_000)]
)
def test_a_session_that_may_not_be_looked_up_is_no_longer_than_the_default(
    interval_ms: int, guess_ms: int
) -> None:
    world = ConsumerSimulation(group_consumer_heartbeat_interval_ms=interval_ms)
    world.broker.create_topic("t")
    refused = DescribeConfigsResponse(
        results=[DescribeConfigsResult(error_code=ErrorCode.GROUP_AUTHORIZATION_FAILED)]
    )
    world.fault = lambda _, call: (
        refused if isinstance(call.request, DescribeConfigsRequest) else None
    )
    first = member(world, SERVER_SIDE)
    rebalance(first)
    assert first.core._member is not None
    assert first.core._member.session_ms == guess_ms == min(DEFAULT_SESSION_MS, 9 * interval_ms)


def test_a_session_that_an_administrator_shortens_is_shorter_within_a_minute() -> None:
    world = ConsumerSimulation(
        group_consumer_session_timeout_ms=60_000, group_consumer_heartbeat_interval_ms=3_000
    )
    world.broker.create_topic("t")
    first = member(world, SERVER_SIDE)
    rebalance(first)
    own = first.core._member
    assert own is not None
    assert own.session_ms == 60_000
    shorter = AlterableConfig(name="consumer.session.timeout.ms", value="45000")
    resource = AlterConfigsResource(resource_type=32, resource_name="g", configs=[shorter])
    world.broker.call(IncrementalAlterConfigsRequest(resources=[resource]))
    world.advance(66_000)
    assert own.session_ms == 45_000


# A join whose connection is dead


def test_a_join_whose_answer_never_comes_is_made_again() -> None:
    world = watched_world()
    silent: set[Program] = set()
    first = member(world, "range")
    world.lost = lambda program, call: (
        SILENCE if program in silent and isinstance(call.request, JoinGroupRequest) else None
    )
    silent.add(first)
    for _ in range(20):
        first.poll(20)
        world.advance(500)
    silent.clear()
    fill(world)
    drain(world, [first], set())


def test_a_join_waits_for_a_member_that_works_for_minutes() -> None:
    world = watched_world()
    busy = member(world, "range")
    rebalance(busy)
    newcomer = member(world, "range")
    for _ in range(400):  # 200 s; max.poll.interval.ms is 300 s
        newcomer.poll(20)
        world.advance(500)
    assert numbers(busy) == list(range(len(PARTITIONS)))
    rebalance(busy, newcomer, rounds=8)
    assert sorted(numbers(busy) + numbers(newcomer)) == list(range(len(PARTITIONS)))
    assert len(numbers(busy)) == 2, "the newcomer counts once, however often it asked"


# Random histories


@pytest.mark.parametrize("seed", range(12))
def test_a_silent_network_leaves_one_owner_and_loses_no_records(seed: int) -> None:
    history(seed)


def history(seed: int) -> None:
    """Run three members with silent networks of every kind, then repair the network and read all records."""
    random_ = random.Random(seed)
    world = watched_world()
    protocol = random_.choice(PROTOCOLS)
    programs = [member(world, protocol) for _ in range(3)]
    fill(world)
    seen: set[tuple[int, int]] = set()
    for _ in range(random_.randint(2, 5)):
        silent = set(random_.sample(programs, random_.randint(1, 2)))
        world.fault = world.lost = None
        world.delay_ms = lambda _: 0
        random_.choice(SILENCES)(world, silent)
        for _ in range(random_.randint(10, 200)):
            for program in programs:
                if random_.random() < 0.8:
                    read(program, seen)
            world.advance(random_.choice([50, 500, 500, 3_000]))
        silent.clear()
        for _ in range(random_.randint(0, 40)):
            for program in programs:
                read(program, seen)
            world.advance(500)
    drain(world, programs, seen)
