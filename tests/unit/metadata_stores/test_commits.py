"""The conformance suite of metadata stores: keys, versions, checks and limits."""

from __future__ import annotations

import pytest

from headrace.ports import Check, Conflict, Delete, MetadataEntry, MetadataStore, Put, versions_of
from tests.fixtures.metadata_stores import commit, stored


def test_an_absent_key_is_none(store: MetadataStore):
    assert stored(store).get("topics/flights") is None
    assert stored(store, "topics/") == {}


def test_a_put_is_read_back_with_its_version(store: MetadataStore):
    versions = commit(store, [], [Put("a", b"1")])
    assert stored(store).get("a") == MetadataEntry("a", b"1", versions["a"])


def test_a_snapshot_has_all_entries_sorted_by_key(store: MetadataStore):
    keys = ["topics/b", "topics", "topics/a", "topics_z", "u", "Ü", "z%"]
    commit(store, [], [Put(key, b"") for key in keys])
    assert list(stored(store)) == sorted(keys)


def test_a_failing_check_names_its_index_and_changes_nothing(store: MetadataStore):
    version = commit(store, [], [Put("a", b"1")])["a"]
    with pytest.raises(Conflict) as conflict:
        commit(
            store,
            [Check("a", version), Check("b", "exists"), Check("a", "absent")],
            [Put("a", b"2"), Put("c", b"3")],
        )
    assert conflict.value.index == 1
    assert stored(store).get("a") == MetadataEntry("a", b"1", version)
    assert stored(store).get("c") is None


@pytest.mark.parametrize(
    ("present", "wanted", "holds"),
    [
        (True, "exists", True),
        (True, "absent", False),
        (False, "exists", False),
        (False, "absent", True),
        (False, 1, False),
    ],
)
def test_a_check_compares_the_existence_of_a_key(store: MetadataStore, present, wanted, holds):
    if present:
        commit(store, [], [Put("a", b"")])
    check = Check("a", wanted)
    if holds:
        commit(store, [check], [Put("b", b"")])
        assert stored(store).get("b") is not None
    else:
        with pytest.raises(Conflict):
            commit(store, [check], [Put("b", b"")])
        assert stored(store).get("b") is None


def test_every_write_changes_the_version(store: MetadataStore):
    first = commit(store, [], [Put("a", b"same")])["a"]
    second = commit(store, [Check("a", first)], [Put("a", b"same")])["a"]
    assert first != second
    with pytest.raises(Conflict):
        commit(store, [Check("a", first)], [Put("a", b"late")])


def test_a_version_never_recurs_after_deletion(store: MetadataStore):
    seen = set()
    for _ in range(5):
        seen.add(commit(store, [Check("a", "absent")], [Put("a", b"")])["a"])
        commit(store, [], [Delete("a")])
    assert len(seen) == 5


def test_a_check_fails_after_the_key_was_deleted_and_created_again(store: MetadataStore):
    before = commit(store, [], [Put("a", b"same")])["a"]
    commit(store, [], [Delete("a")])
    commit(store, [Check("a", "absent")], [Put("a", b"same")])
    with pytest.raises(Conflict):
        commit(store, [Check("a", before)], [Put("a", b"late")])
    with pytest.raises(Conflict):
        commit(store, [Check("a", before)], [Delete("a")])
    assert stored(store)["a"].value == b"same"


def test_deleting_an_absent_key_is_no_error(store: MetadataStore):
    assert commit(store, [], [Delete("a")]) == {}


def test_operations_apply_in_order(store: MetadataStore):
    versions = commit(store, [], [Put("a", b"1"), Delete("a"), Put("b", b"1"), Put("b", b"2")])
    assert stored(store).get("a") is None
    assert list(versions) == ["b"]
    assert stored(store).get("b") == MetadataEntry("b", b"2", versions["b"])


def test_a_value_is_copied(store: MetadataStore):
    value = bytearray(b"1")
    commit(store, [], [Put("a", memoryview(value))])  # type: ignore[arg-type]  # callers may hold any buffer
    value[0] = 0
    entry = stored(store).get("a")
    assert entry is not None
    assert entry.value == b"1"


@pytest.mark.parametrize(
    "operations",
    [
        [Put("", b"")],
        [Put("a\x00b", b"")],
        [Put("k" * 1025, b"")],
        [Delete(str(i)) for i in range(101)],
        [Put("a", bytes(300_000)), Put("b", bytes(300_000))],
    ],
)
def test_a_commit_beyond_the_limits_is_refused(
    store: MetadataStore, operations: list[Put | Delete]
):
    with pytest.raises(ValueError, match=r"key|commit"):
        commit(store, [], operations)
    assert stored(store) == {}


def test_an_outcome_is_a_value_and_is_not_raised(store: MetadataStore):
    versions = store.wait(store.commit([], [Put("a", b"")]))
    assert versions_of(versions) == versions
    outcome = store.wait(store.commit([Check("a", "absent")], []))
    assert isinstance(outcome, Conflict)
    assert outcome.index == 0


@pytest.mark.parametrize("store", ["memory", "sqlite", "simulated"], indirect=True)
def test_a_commit_without_a_network_has_its_outcome_at_once(store: MetadataStore):
    assert store.commit([], [Put("a", b"")]).done
    assert store.commit([Check("a", "absent")], []).done


def test_only_the_last_operation_on_a_key_counts(store: MetadataStore):
    versions = commit(store, [], [Put("a", b"1"), Put("b", b"1"), Delete("b"), Put("a", b"2")])
    assert list(versions) == ["a"]
    assert [(e.key, e.value) for e in stored(store).values()] == [("a", b"2")]
