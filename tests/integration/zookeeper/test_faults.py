"""The metadata store on ZooKeeper when servers die, freeze or cannot be reached, and when sessions expire."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from headrace.deferred import Deferred
from headrace.metadata_stores.zookeeper.store import ZooKeeperMetadataStore
from headrace.ports import (
    Check,
    CommitOutcome,
    Conflict,
    Delete,
    Put,
    SessionLost,
    Unavailable,
    Unknown,
)
from tests.fixtures.logs import RecordingJournal
from tests.fixtures.metadata_stores import Seen, commit, settle, stored, watch
from tests.fixtures.proxy import Proxy
from tests.fixtures.zookeeper import ZooKeeper
from tests.integration.zookeeper.conftest import Open, end_session

pytestmark = pytest.mark.java
SESSION_MS = 9_000
SHORT_SESSION_MS = 2_000
LIMIT_S = 30.0


@pytest.fixture
def one(tmp_path: Path) -> Iterator[ZooKeeper]:
    """An ensemble of one server, which the test may end."""
    with ZooKeeper(tmp_path) as ensemble:
        yield ensemble


@pytest.fixture
def three(tmp_path: Path) -> Iterator[ZooKeeper]:
    """An ensemble of three servers, which the test may end."""
    with ZooKeeper(tmp_path, nodes=3) as ensemble:
        yield ensemble


def until(store: ZooKeeperMetadataStore, condition: Callable[[], bool]) -> None:
    """Handle what arrives until a condition is true."""
    deadline = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < deadline, "the condition has not become true"
        store._arrived.wait(0.02)
        store.run_pending()


def arrived(store: ZooKeeperMetadataStore, deferred: Deferred[CommitOutcome]) -> CommitOutcome:
    until(store, lambda: deferred.done)
    return deferred.value


def is_connected(store: ZooKeeperMetadataStore) -> bool:
    return store._engine.failure is None


def is_lost(store: ZooKeeperMetadataStore) -> bool:
    return isinstance(store._engine.failure, SessionLost)


def insist(store: ZooKeeperMetadataStore, put: Put) -> None:
    """Commit until the outcome is known, as a caller without a fence may for an idempotent write."""
    deadline = time.monotonic() + LIMIT_S
    while not isinstance(arrived(store, store.commit([], [put])), dict):
        assert time.monotonic() < deadline, "no commit was acknowledged"
        store._arrived.wait(0.02)


# A server that is gone


def test_a_call_without_a_connection_is_unavailable_at_once(one: ZooKeeper, opened: Open) -> None:
    store = opened(one, session_timeout_ms=SESSION_MS)
    commit(store, [], [Put("a", b"1")])
    one.kill()
    until(store, lambda: not is_connected(store))
    before = time.monotonic()
    outcome = store.commit([], [Put("a", b"2")])
    assert isinstance(outcome.value, Unavailable)
    assert isinstance(store.wait(store.sync()), Unavailable)
    assert isinstance(store.wait(store.renew()), Unavailable)
    assert time.monotonic() - before < 2


def test_a_session_survives_the_restart_of_all_servers(
    one: ZooKeeper, opened: Open, journal: RecordingJournal
) -> None:
    store, seen = opened(one, session_timeout_ms=20_000), Seen()
    watch(store, seen)
    commit(store, [], [Put("a", b"1"), Put("live", b"", ephemeral=True)])
    one.kill()
    until(store, lambda: not is_connected(store))
    one.restart(one.nodes[0])
    until(store, lambda: is_connected(store))
    commit(store, [Check("live", "exists")], [Put("a", b"2")])
    assert [entry.value for entry in seen.known.values()] == [b"2", b""]
    assert seen.snapshots == 1
    assert store.session.number == 1
    assert [event for _, event, _ in journal.events] == [
        "zookeeper_disconnected",
        "zookeeper_connected",
    ]


def test_a_commit_in_flight_is_unknown_and_lands_when_the_server_wakes(
    one: ZooKeeper, opened: Open
) -> None:
    store, seen = opened(one, session_timeout_ms=SESSION_MS), Seen()
    watch(store, seen)
    before = commit(store, [], [Put("fence", b"0")])["fence"]
    one.freeze()
    began = time.monotonic()
    outcome = store.commit([Check("fence", before)], [Put("fence", b"1"), Put("late", b"")])
    assert isinstance(arrived(store, outcome), Unknown)
    assert time.monotonic() - began < SESSION_MS / 1000 / 3 + 2
    until(store, lambda: not is_connected(store))
    assert isinstance(store.commit([], [Put("b", b"")]).value, Unavailable)
    one.thaw()
    until(store, lambda: is_connected(store))
    void = arrived(store, store.commit([Check("fence", before)], [Put("fence", b"void")]))
    settle(store)
    assert isinstance(void, Conflict) == ("late" in seen.known)
    assert seen.known == stored(store)
    assert store.session.number == 1


def test_a_commit_that_lands_late_changes_nothing_after_its_check_has_become_false(
    three: ZooKeeper, opened: Open
) -> None:
    """The server of the session is frozen with the commit in its buffer, and another server takes the session."""
    follower = next(node for node in three.nodes if node.mode() == "follower")
    seen = Seen()
    with Proxy() as proxy:
        proxy.target = ("127.0.0.1", follower.port)
        others = ",".join(node.address for node in three.nodes if node is not follower)
        store = opened(f"{proxy.address}/late", session_timeout_ms=20_000)
        watch(store, seen)
        before = commit(store, [], [Put("fence", b"0")])["fence"]
        follower.freeze()
        outcome = store.commit([Check("fence", before)], [Put("fence", b"1"), Put("late", b"")])
        until(store, lambda: proxy.connections > 0)
        link = store._engine._link
        assert link is not None
        link.client.set_hosts(f"{others}/late")
        assert isinstance(arrived(store, outcome), Unknown)
        until(store, lambda: is_connected(store))
        commit(store, [Check("fence", before)], [Put("fence", b"void")])
        follower.thaw()
        three.wait([follower])
        for number in range(20):
            commit(store, [], [Put("later", b"%d" % number)])
    assert stored(store)["fence"].value == b"void"
    assert "late" not in stored(store)
    assert seen.known == stored(store)
    assert store.session.number == 1


def test_the_death_of_the_leader_loses_no_acknowledged_commit(
    three: ZooKeeper, opened: Open
) -> None:
    stores = [opened(three, session_timeout_ms=SESSION_MS) for _ in range(3)]
    readers = [Seen() for _ in stores]
    for store, seen in zip(stores, readers, strict=True):
        watch(store, seen)
    leader = three.leader
    for number in range(60):
        if number == 20:
            leader.kill()
        for index, store in enumerate(stores):
            insist(store, Put(f"k{index}", b"%d" % number))
    for store, seen in zip(stores, readers, strict=True):
        settle(store)
        assert {key: entry.value for key, entry in seen.known.items()} == {
            "k0": b"59",
            "k1": b"59",
            "k2": b"59",
        }
        assert seen.known == stored(store)


def test_a_frozen_leader_is_replaced_and_its_clients_continue(
    three: ZooKeeper, opened: Open
) -> None:
    store = opened(three, session_timeout_ms=SESSION_MS)
    commit(store, [], [Put("live", b"", ephemeral=True)])
    leader = three.leader
    leader.freeze()
    insist(store, Put("a", b"1"))
    leader.thaw()
    insist(store, Put("a", b"2"))
    settle(store)
    assert stored(store)["a"].value == b"2"


# Networks


def test_a_dead_server_is_noticed_within_a_third_of_the_session(
    one: ZooKeeper, opened: Open
) -> None:
    with Proxy() as proxy:
        proxy.target = ("127.0.0.1", one.nodes[0].port)
        store = opened(f"{proxy.address}/dead", session_timeout_ms=SESSION_MS)
        commit(store, [], [Put("a", b"1")])
        began = time.monotonic()
        proxy.silence = "half-open"
        until(store, lambda: not is_connected(store))  # by the pings of kazoo
        assert time.monotonic() - began < SESSION_MS / 1000 / 3 + 2
        proxy.silence = None
        until(store, lambda: is_connected(store))
        proxy.silence = "half-open"
        began = time.monotonic()
        outcome = store.commit([], [Put("a", b"")])
        assert isinstance(arrived(store, outcome), Unknown)
        assert time.monotonic() - began < SESSION_MS / 1000 / 3 + 2


def test_another_server_is_tried_after_a_tenth_of_the_session(
    three: ZooKeeper, opened: Open
) -> None:
    frozen = [node for node in three.nodes if node.mode() == "follower"][:1]
    frozen[0].freeze()
    for _ in range(4):  # the order of the servers is random
        began = time.monotonic()
        opened(three, session_timeout_ms=15_000)
        assert time.monotonic() - began < 4.5


def test_a_session_without_a_connection_for_too_long_is_lost(one: ZooKeeper, opened: Open) -> None:
    seen, other = Seen(), Seen()
    with Proxy() as proxy:
        proxy.target = ("127.0.0.1", one.nodes[0].port)
        store = opened(f"{proxy.address}/cut", session_timeout_ms=SHORT_SESSION_MS)
        witness = opened(f"{one.address}/cut", session_timeout_ms=SESSION_MS)
        watch(store, seen)
        watch(witness, other)
        commit(store, [], [Put("live", b"", ephemeral=True), Put("stays", b"")])
        until(witness, lambda: "live" in other.known)
        proxy.silence = "cut"
        until(witness, lambda: "live" not in other.known)
        assert list(other.known) == ["stays"]
        until(store, lambda: not is_connected(store))
        assert isinstance(store.commit([], []).value, Unavailable)
        assert isinstance(store.wait(store.renew()), Unavailable)
        proxy.silence = None
        until(store, lambda: isinstance(store.commit([], []).value, SessionLost))
        assert "live" in seen.known, "a client that has lost its session receives nothing"
        assert store.wait(store.renew()) is None
        settle(store)
        assert (list(seen.known), store.session.number) == (["stays"], 2)
        assert seen.snapshots == 1
        commit(store, [Check("live", "absent")], [Put("live", b"2", ephemeral=True)])
        settle(witness)
        assert seen.known == other.known


def test_all_sessions_end_after_the_servers_were_frozen(one: ZooKeeper, opened: Open) -> None:
    stores = [opened(one, session_timeout_ms=SHORT_SESSION_MS) for _ in range(3)]
    readers = [Seen() for _ in stores]
    for index, (store, seen) in enumerate(zip(stores, readers, strict=True)):
        watch(store, seen)
        commit(store, [], [Put(f"live/{index}", b"", ephemeral=True)])
    one.freeze()
    in_flight = [store.commit([], [Put(f"live/k{i}", b"")]) for i, store in enumerate(stores)]
    for store, outcome in zip(stores, in_flight, strict=True):
        assert isinstance(arrived(store, outcome), Unknown)
    one.thaw()
    for store in stores:
        end_session(store)
    for store in stores:
        until(store, partial(is_lost, store))
        assert store.wait(store.renew()) is None
    for index, store in enumerate(stores):
        commit(
            store, [Check(f"live/{index}", "absent")], [Put(f"live/{index}", b"2", ephemeral=True)]
        )
    for store, seen in zip(stores, readers, strict=True):
        settle(store)
        assert [seen.known[f"live/{i}"].value for i in range(3)] == [b"2"] * 3
        assert seen.known == stored(store)


def test_the_end_of_a_session_is_seen_by_others(single: ZooKeeper, opened: Open) -> None:
    store, witness, seen = opened(single), opened(single), Seen()
    watch(witness, seen)
    commit(store, [], [Put("live", b"", ephemeral=True), Put("stays", b"")])
    until(witness, lambda: "live" in seen.known)
    store.close()
    until(witness, lambda: "live" not in seen.known)
    assert list(seen.known) == ["stays"]
    assert list(seen.batches[-1].deletes) == ["live"]


def test_another_session_may_take_over_an_ephemeral_key(single: ZooKeeper, opened: Open) -> None:
    old, new, seen = opened(single), opened(single), Seen()
    watch(new, seen)
    before = commit(old, [], [Put("live", b"1", ephemeral=True)])["live"]
    settle(new)
    commit(new, [Check("live", before)], [Put("live", b"2", ephemeral=True)])
    old.close()
    settle(new)
    assert stored(new)["live"].value == seen.known["live"].value == b"2"
    new.close()
    assert stored(opened(single)) == {}


def test_many_writers_see_the_same_history(triple: ZooKeeper, opened: Open) -> None:
    stores = [opened(triple) for _ in range(4)]
    readers = [Seen() for _ in stores]
    for store, seen in zip(stores, readers, strict=True):
        watch(store, seen)
    outcomes = [
        (
            store,
            store.commit([], [Put(f"k{number % 5}", b"%d" % number), Delete(f"k{5 + number % 3}")]),
        )
        for number in range(40)
        for store in stores
    ]
    assert all(isinstance(arrived(store, outcome), dict) for store, outcome in outcomes)
    for store in stores:
        settle(store)
    changes = [[b for b in seen.batches if not b.snapshot] for seen in readers]
    assert all(each == changes[0] for each in changes)
    assert sum(bool(batch.puts) for batch in changes[0]) == len(outcomes)
    assert all(seen.known == readers[0].known == stored(stores[0]) for seen in readers)
