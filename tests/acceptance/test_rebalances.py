"""B6: rebalances do not stop all members. B7: the client contains little of the protocol's logic."""

from __future__ import annotations

import ast
import asyncio
import threading
from pathlib import Path

import pytest

import headrace
from headrace import TopicPartition
from tests.acceptance.place import QUICK_CONSUMER, Member, settled, until
from tests.fixtures.consumer_simulation import ConsumerSimulation

ROOT = Path(__file__).resolve().parents[2]
CLIENTS = ROOT / "src" / "headrace" / "clients"
DECIDES = ["engine.py", "network", "flows", "consumer", "producer", "admin"]
DRIVES = ("aio", "blocking", "settings")
"""The prefixes of modules that are shells, or that build a core for a shell."""
IO = {"asyncio", "os", "time", "threading", "socket", "select", "selectors", "uuid", "logging"}


@pytest.mark.parametrize("assignor", ["equal", "cooperative-sticky", "server-side"])
def test_b6_members_read_kept_partitions_during_a_rebalance(place, name, assignor) -> None:
    place.protocol = "consumer" if assignor == "server-side" else "classic"
    topic = place.topic(name, 4)
    first = Member(place, name, [topic], assignor=assignor)
    until(lambda: settled(4, first), first)
    second = Member(place, name, [topic], assignor=assignor)
    until(lambda: settled(4, first, second), first, second)
    given_up = {one for what, many in first.told if what == "revoked" for one in many}
    assert given_up == second.partitions, "only what moved was given up"
    admin = place.admin()
    until(lambda: admin.describe_group(name).state == "Stable", first, second)
    described = admin.describe_group(name)
    assert described.protocol == ("uniform" if assignor == "server-side" else assignor)
    who = {member.member_id: set(member.assignment) for member in described.members}
    ids = [one.consumer.group_metadata().member_id for one in (first, second)]
    assert who == dict(zip(ids, (first.partitions, second.partitions), strict=True))


@pytest.mark.usefixtures("protocol")
def test_b6_a_static_member_restarts_without_a_rebalance(place, name) -> None:
    topic = place.topic(name, 4)
    options = {"session_timeout_ms": 20_000}
    first = Member(place, name, [topic], group_instance_id="one", **options)
    second = Member(place, name, [topic], group_instance_id="two", **options)
    until(lambda: settled(4, first, second), first, second)
    before = second.partitions, second.consumer.group_metadata().generation_id
    first.consumer.close()
    again = Member(place, name, [topic], group_instance_id="one", **options)
    until(lambda: settled(4, again, second), again, second)
    assert (second.partitions, second.consumer.group_metadata().generation_id) == before


def test_b6_a_group_moves_from_eager_to_cooperative_while_it_works(place, name) -> None:
    topic = place.topic(name, 2)
    old = Member(place, name, [topic], assignor="range")
    until(lambda: settled(2, old), old)
    both = Member(place, name, [topic], assignor=["cooperative-sticky", "range"])
    until(lambda: settled(2, old, both), old, both)
    old.consumer.close()
    new = Member(place, name, [topic], assignor=["cooperative-sticky", "range"])
    until(lambda: settled(2, both, new), both, new)
    assert place.admin().describe_group(name).protocol == "cooperative-sticky"


def imported(path: Path) -> set[str]:
    """Return the packages that a module imports at run time."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module.partition(".")[0])
    return found


def test_b7_deciding_modules_do_no_io() -> None:
    modules = [
        module
        for part in DECIDES
        for module in ([CLIENTS / part] if part.endswith(".py") else (CLIENTS / part).rglob("*.py"))
        if not module.name.startswith(DRIVES)
    ]
    assert len(modules) > 30
    assert {module.name: imported(module) & IO for module in modules if imported(module) & IO} == {}


def test_b7_the_code_that_talks_to_the_coordinator_is_small() -> None:
    sizes = {
        path: len((CLIENTS / path).read_text().splitlines())
        for path in (
            "consumer/member.py",
            "consumer/classic.py",
            "consumer/kip848.py",
            "flows/classic_group.py",
            "flows/kip848.py",
            "flows/coordinator.py",
        )
    }
    one_protocol = sizes["consumer/kip848.py"] + sizes["flows/kip848.py"]
    assert sum(sizes.values()) - one_protocol < 1_000, sizes
    assert one_protocol < 600, sizes


def test_b7_one_thread_is_enough_and_heartbeats_come_from_polls() -> None:
    """The core lives on calls alone: without a thread, a loop or a socket, a group forms and stays together."""
    harness = ConsumerSimulation()
    harness.broker.create_topic("t", partitions=2)
    threads = threading.active_count()
    members = [harness.consumer(group="g", auto_offset_reset="earliest") for _ in range(2)]
    for member in members:
        member.subscribe(["t"])
    for _ in range(200):  # for longer than two sessions
        for member in members:
            member.poll(500)
    assert [len(member.assignment()) for member in members] == [1, 1]
    assert threading.active_count() == threads


def test_b7_asyncio_clients_start_no_thread(place, name) -> None:
    place.topic(name, 2)

    async def life() -> None:
        before = set(threading.enumerate())
        async with headrace.aio.Consumer(place.target, group=name, **QUICK_CONSUMER) as consumer:
            await consumer.subscribe([name])
            assert await consumer.assignment() == [TopicPartition(name, n) for n in range(2)]
            await consumer.poll(0.1)
            new = {thread.name for thread in set(threading.enumerate()) - before}
            assert not {one for one in new if not one.startswith("asyncio")}, new

    asyncio.run(asyncio.wait_for(life(), 60))


def test_b7_protocol_page_names_five_requests_and_the_example_consumer_is_short() -> None:
    page = (ROOT / "docs" / "reference" / "client-protocol.md").read_text()
    for needed in ("JoinGroup", "SyncGroup", "Heartbeat", "OffsetCommit", "FindCoordinator"):
        assert needed in page
    peers = ROOT / "tests" / "conformance" / "other_languages"
    (consumer,) = peers.glob("consumer.*")
    assert len(consumer.read_text().splitlines()) <= 300
