"""The image of the metadata: entries, changes, consumers."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.cluster import image as module
from headrace.core.cluster.image import Changes, MetadataImage
from headrace.errors import StorageError
from headrace.metadata_stores.memory import MemoryMetadataStore
from headrace.ports import Delete, MetadataBatch, MetadataEntry, Put
from tests.fixtures.metadata_stores import stored


def entry(key: str, version: int = 1, value: bytes = b"") -> MetadataEntry:
    return MetadataEntry(key, value, version)


def snapshot(*entries: MetadataEntry) -> MetadataBatch:
    return MetadataBatch(snapshot=True, puts=entries)


def unread(found: MetadataEntry) -> bytes:
    return found.value


def text(found: MetadataEntry) -> str:
    try:
        return found.value.decode()
    except UnicodeDecodeError as error:
        raise StorageError(f"{found.key}: {error.reason}") from error


def test_a_new_consumer_gets_the_present_entries_below_its_prefix() -> None:
    image = MetadataImage()
    image.apply(snapshot(entry("a/2", value=b"2"), entry("b/1"), entry("a/1", value=b"1")))
    received: list[Changes[str]] = []
    present = image.consume("a/", text, received.append)
    assert list(present.items()) == [("a/1", "1"), ("a/2", "2")]
    assert image.consume("c/", text, received.append) == {}
    assert received == []


def test_a_consumer_receives_only_changes_below_its_prefix() -> None:
    image = MetadataImage()
    received: list[Changes[bytes]] = []
    image.consume("a/", unread, received.append)
    image.apply(MetadataBatch(snapshot=False, puts=[entry("a/1"), entry("b/1")]))
    image.apply(MetadataBatch(snapshot=False, puts=[entry("b/2")], deletes=["b/1"]))
    image.apply(MetadataBatch(snapshot=False, puts=[], deletes=["a/1", "a/2"]))
    assert received == [Changes({"a/1": b""}, []), Changes({}, ["a/1"])]


@pytest.mark.parametrize("sorted_changes", [0, 3, 1000])
def test_a_list_has_all_entries_below_a_prefix_in_order_after_any_change(
    sorted_changes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SORTED_CHANGES", sorted_changes)
    chance, image, known = random.Random(sorted_changes), MetadataImage(), dict[str, bytes]()
    for number in range(300):
        keys = [
            chance.choice("abc") + "/" * chance.randrange(2) + chance.choice("xyz") for _ in "1234"
        ]
        puts = dict.fromkeys(keys[:2], b"%d" % number)
        deletes = sorted({key for key in keys[2:] if key not in puts})
        if snapshot := chance.random() < 0.1:
            known, deletes = {}, []
        for key in deletes:
            known.pop(key, None)
        known |= puts
        entries = [MetadataEntry(key, puts[key], number) for key in sorted(puts)]
        image.apply(MetadataBatch(snapshot, entries, deletes))
        for prefix in ("", "a", "a/", "b/x", "c", "d"):
            expected = [(key, known[key]) for key in sorted(known) if key.startswith(prefix)]
            assert [(entry.key, entry.value) for entry in image.list(prefix)] == expected


def test_a_second_snapshot_deletes_missing_entries_and_repeats_none() -> None:
    image = MetadataImage()
    received: list[Changes[bytes]] = []
    image.apply(snapshot(entry("a/1"), entry("a/2"), entry("a/3")))
    image.consume("", unread, received.append)
    image.apply(snapshot(entry("a/1"), entry("a/3", version=5), entry("a/4")))
    assert received == [Changes({"a/3": b"", "a/4": b""}, ["a/2"])]


def test_a_key_that_was_deleted_and_created_again_may_have_a_lower_version() -> None:
    image = MetadataImage()
    image.apply(snapshot(entry("a", version=9, value=b"old")))
    image.apply(MetadataBatch(snapshot=False, puts=[entry("a", version=1, value=b"new")]))
    assert image.get("a") == entry("a", version=1, value=b"new")


def test_consumers_are_called_in_the_order_in_which_they_were_added() -> None:
    image = MetadataImage()
    called: list[str] = []
    image.consume("", unread, lambda _: called.append("first"))
    image.consume("", unread, lambda _: called.append("second"))
    image.apply(snapshot(entry("a")))
    assert called == ["first", "second"]


def test_an_unreadable_entry_keeps_no_other_change_from_its_consumer() -> None:
    image = MetadataImage()
    received: list[Changes[str]] = []
    image.apply(snapshot(entry("a/3")))
    image.consume("a/", text, received.append)
    batch = MetadataBatch(
        snapshot=False,
        puts=[entry("a/1", value=b"1"), entry("a/2", value=b"\xff"), entry("a/4", value=b"4")],
        deletes=["a/3"],
    )
    assert [str(error) for error in image.apply(batch)] == ["a/2: invalid start byte"]
    assert received == [Changes({"a/1": "1", "a/4": "4"}, ["a/3"])]


def test_a_consumer_is_not_called_if_no_change_can_be_read() -> None:
    image = MetadataImage()
    received: list[Changes[str]] = []
    image.consume("a", text, received.append)
    assert image.apply(snapshot(entry("a", value=b"\xff")))
    assert received == []


def test_a_consumer_of_a_present_unreadable_entry_is_not_added() -> None:
    image = MetadataImage()
    image.apply(snapshot(entry("a", value=b"\xff")))
    with pytest.raises(StorageError, match="invalid start byte"):
        image.consume("a", text, lambda _: None)


keys = st.sampled_from([f"{prefix}/{number}" for prefix in "ab" for number in range(3)])
commits = st.lists(st.tuples(keys, st.none() | st.binary(max_size=2)), min_size=1, max_size=4)


@given(st.lists(commits, max_size=12), st.integers(0, 12))
def test_the_image_and_its_consumers_equal_the_store(
    work: list[list[tuple[str, bytes | None]]], late: int
) -> None:
    """The image follows a store in memory. A consumer that is added late has the same entries as an early one."""
    store, image = MemoryMetadataStore(), MetadataImage()
    copies: dict[str, dict[str, bytes]] = {"early": {}, "late": {}}

    def consume(name: str) -> None:
        def apply(changes: Changes[bytes]) -> None:
            for key in changes.deletes:
                del copies[name][key]
            copies[name].update(changes.puts)

        copies[name] = dict(image.consume("a/", unread, apply))

    consume("early")
    store.watch(image.apply)
    for number, operations in enumerate(work):
        if number == late:
            consume("late")
        store.commit(
            [], [Delete(key) if value is None else Put(key, value) for key, value in operations]
        )
    if late >= len(work):
        consume("late")
    assert image.list("") == list(stored(store).values())
    expected = {entry.key: entry.value for entry in stored(store, "a/").values()}
    assert copies == {"early": expected, "late": expected}
