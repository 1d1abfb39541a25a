"""The metadata store on ZooKeeper with addresses that do not work, and with znodes that were changed by hand."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
from kazoo.client import KazooClient

from headrace.errors import ConfigError, StorageError
from headrace.metadata_stores.zookeeper import layout
from headrace.metadata_stores.zookeeper.store import ZooKeeperMetadataStore
from headrace.ports import Check, Conflict, Put, Unavailable
from tests.fixtures.logs import RecordingJournal
from tests.fixtures.metadata_stores import Seen, commit, settle, stored, watch
from tests.fixtures.zookeeper import ZooKeeper
from tests.integration.zookeeper.conftest import Open

pytestmark = pytest.mark.java
SOON = {"connection_timeout_ms": 1_000}


# Addresses


def test_an_address_at_which_no_server_listens_is_named(opened: Open) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    began = time.monotonic()
    with pytest.raises(Unavailable, match=rf"127.0.0.1:{port} cannot be reached .*refused"):
        opened(f"127.0.0.1:{port}", **SOON)
    assert time.monotonic() - began < 10


def test_a_server_that_is_no_zookeeper_is_named(opened: Open) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(
            Unavailable, match=f"{address} accepts connections, but does not answer"
        ):
            opened(address, **SOON)


def test_a_host_without_an_address_is_named(opened: Open) -> None:
    with pytest.raises(Unavailable, match=r"no\.such\.host\.invalid:2181 cannot be reached"):
        opened("no.such.host.invalid", **SOON)


def test_a_missing_chroot_is_an_error_if_it_must_exist(single: ZooKeeper, opened: Open) -> None:
    with pytest.raises(ConfigError, match=r"has no znode /tests-absent: check the chroot"):
        opened(f"{single.address}/tests-absent", creates_chroot=False)
    opened(f"{single.address}/tests-made")
    commit(opened(f"{single.address}/tests-made", creates_chroot=False), [], [Put("a", b"")])


def test_an_ensemble_without_a_majority_is_named(tmp_path: Path, opened: Open) -> None:
    with ZooKeeper(tmp_path, 3, jvm_options=["-Dreadonlymode.enabled=true"]) as ensemble:
        last = ensemble.leader
        for node in ensemble.nodes:
            if node is not last:
                node.kill()
        deadline = time.monotonic() + 30
        while last.mode() != "read-only":
            assert time.monotonic() < deadline
        with pytest.raises(Unavailable, match=f"{last.address} is read-only, because it has lost"):
            opened(last.address, **SOON)


# Znodes


@pytest.fixture
def hand(single: ZooKeeper, chroot: str) -> Iterator[KazooClient]:
    """Another client, which changes the znodes themselves."""
    outside = KazooClient(single.address)
    outside.start(30)
    outside.ensure_path(chroot)
    outside.stop()
    outside.close()
    client = KazooClient(single.address + chroot)
    client.start(30)
    yield client
    client.stop()
    client.close()


@pytest.mark.parametrize(
    ("data", "error"),
    [(b'{"format": 2}', "was written in format 2, this version reads 1"), (b"", "not of Headrace")],
)
def test_a_root_in_another_format_is_refused(
    single: ZooKeeper, opened: Open, hand: KazooClient, data: bytes, error: str
) -> None:
    hand.create(layout.ROOT, data)
    with pytest.raises(StorageError, match=error):
        opened(single)
    assert hand.get_children(layout.ROOT) == []


def named(journal: RecordingJournal, event: str) -> list[object]:
    return [fields["znode"] for fields in journal.named(event)]


@pytest.mark.parametrize("data", [b"", b"{}", b'2={"new": 1}'])
def test_an_unreadable_znode_keeps_its_last_value_and_the_others_stay_in_service(
    single: ZooKeeper, opened: Open, hand: KazooClient, journal: RecordingJournal, data: bytes
) -> None:
    store, seen = opened(single), Seen()
    watch(store, seen)
    version = commit(store, [], [Put("bad", b"1"), Put("good", b"1")])["bad"]
    path = layout.path_of("bad")
    hand.set(path, data)
    with pytest.raises(Conflict):
        commit(store, [Check("bad", version)], [Put("bad", b"2")])
    settle(store)
    commit(store, [Check("good", version)], [Put("good", b"2")])
    assert (seen.known["bad"].value, seen.known["good"].value) == (b"1", b"2")
    assert path in named(journal, "metadata_znode_edited")
    assert path in named(journal, "metadata_znode_unreadable")
    newcomer = opened(single)
    assert {key: entry.value for key, entry in stored(newcomer).items()} == {"good": b"2"}
    commit(newcomer, [], [Put("bad", b"repaired")])
    settle(store)
    assert stored(newcomer)["bad"] == seen.known["bad"] == stored(store)["bad"]


def test_a_value_that_was_changed_by_hand_is_read_when_a_commit_meets_it(
    single: ZooKeeper, opened: Open, hand: KazooClient, journal: RecordingJournal
) -> None:
    store, seen = opened(single), Seen()
    watch(store, seen)
    version = commit(store, [], [Put("a", b"1")])["a"]
    hand.set(layout.path_of("a"), layout.value_data(b"by hand"))
    with pytest.raises(Conflict):
        commit(store, [Check("a", version)], [Put("a", b"2")])
    settle(store)
    assert seen.known["a"].value == b"by hand"
    commit(store, [Check("a", seen.known["a"].version)], [Put("a", b"3")])
    assert named(journal, "metadata_znode_edited") == [layout.path_of("a")]


def test_a_key_that_was_deleted_by_hand_is_noticed_when_a_commit_meets_it(
    single: ZooKeeper, opened: Open, hand: KazooClient, journal: RecordingJournal
) -> None:
    store, seen = opened(single), Seen()
    watch(store, seen)
    version = commit(store, [], [Put("a", b"1"), Put("b", b"1")])["a"]
    hand.delete(layout.path_of("a"))
    with pytest.raises(Conflict):
        commit(store, [Check("a", version)], [Put("b", b"2")])
    settle(store)
    assert list(seen.known) == ["b"]
    assert named(journal, "metadata_znode_edited") == [layout.path_of("a")]
    commit(store, [Check("a", "absent")], [Put("a", b"2")])
    assert seen.known == stored(opened(single))


@pytest.mark.parametrize("data", [b"", b"{}", msgspec.msgpack.encode([2, "new"])])
def test_an_unreadable_entry_of_the_change_log_is_replaced_by_a_snapshot(
    single: ZooKeeper, opened: Open, hand: KazooClient, journal: RecordingJournal, data: bytes
) -> None:
    store, seen = opened(single), Seen()
    watch(store, seen)
    commit(store, [], [Put("a", b"1")])
    hand.create(f"{layout.generation_path(1)}/c-", data, sequence=True)
    commit(store, [], [Put("a", b"2")])
    assert seen.snapshots == 2
    assert seen.known["a"].value == b"2"
    assert named(journal, "metadata_znode_unreadable") == [layout.change_path(1, 1)]


def deleted_session(hand: KazooClient) -> None:
    (name,) = hand.get_children(layout.SESSIONS)
    hand.delete(f"{layout.SESSIONS}/{name}")


def deleted_directory(hand: KazooClient) -> None:
    hand.delete(f"{layout.ENTRIES}/empty")


def deleted_entries_of_the_log(hand: KazooClient) -> None:
    for name in hand.get_children(layout.generation_path(1)):
        hand.delete(f"{layout.generation_path(1)}/{name}")


@pytest.mark.parametrize("damage", [deleted_session, deleted_directory, deleted_entries_of_the_log])
def test_a_deleted_auxiliary_znode_is_made_again(
    single: ZooKeeper, opened: Open, hand: KazooClient, damage: Callable[[KazooClient], None]
) -> None:
    store, seen = opened(single), Seen()
    watch(store, seen)
    hand.create(f"{layout.ENTRIES}/empty")
    store._engine._reader.tree.directories.add(f"{layout.ENTRIES}/empty")
    commit(store, [], [Put("a", b"1")])
    damage(hand)
    commit(store, [], [Put("a", b"2"), Put("empty/a", b"1")])
    assert seen.known == stored(opened(single))


@pytest.mark.parametrize("path", [layout.CHANGES, layout.ENTRIES])
def test_a_missing_part_of_the_layout_is_named(
    single: ZooKeeper, opened: Open, hand: KazooClient, path: str
) -> None:
    store: ZooKeeperMetadataStore = opened(single)
    commit(store, [], [Put("a", b"1")])
    hand.delete(path, recursive=True)
    outcome = store.wait(store.commit([], [Put("b/b", b"1")]))
    assert isinstance(outcome, Unavailable)
    assert path in str(outcome) or layout.ROOT in str(outcome)
