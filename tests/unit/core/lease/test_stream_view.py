"""Facts that follow from the leases and the shards of a stream."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from headrace.core.lease.actions import ListedShard
from headrace.core.lease.checkpoint import SHARD_END, TRIM_HORIZON, Checkpoint, at_timestamp
from headrace.core.lease.lease import HashRange, Lease, LeaseKey
from headrace.core.lease.settings import LeaseSettings
from headrace.core.lease.view import StreamView
from headrace.errors import ConfigError

BEGUN = Checkpoint("4711")
LATEST = LeaseSettings(start=None)


@dataclass(frozen=True)
class Listed:
    shard: str
    parents: frozenset[str] = frozenset()
    hash_range: HashRange | None = None


def listed(shard: str, *parents: str) -> Listed:
    return Listed(shard, frozenset(parents))


def row(shard: str, *parents: str, checkpoint: Checkpoint = TRIM_HORIZON, epoch: int = 0) -> Lease:
    return Lease(
        key=LeaseKey("g", "s@1", shard),
        checkpoint=checkpoint,
        parents=frozenset(parents),
        epoch=epoch,
    )


def view(
    *rows: Lease, shards: tuple[Listed, ...] = (), settings: LeaseSettings | None = None
) -> StreamView:
    made = StreamView("g", "s@1", settings or LeaseSettings())
    made.on_shards(shards, 90, 95)
    made.on_leases(rows, 100, 110, 5000)
    return made


def created(made: StreamView, shard: ListedShard) -> Checkpoint:
    return made.first_lease(shard).checkpoint


def test_both_parents_are_finished_before_a_child_is_read() -> None:
    for first, second, readable in ((SHARD_END, BEGUN, False), (SHARD_END, SHARD_END, True)):
        made = view(row("a", checkpoint=first), row("b", checkpoint=second), row("c", "a", "b"))
        assert made.is_readable(made.rows["c"]) is readable


def test_a_child_is_readable_after_a_newer_list_lacks_its_parent() -> None:
    made = StreamView("g", "s@1", LeaseSettings())
    made.on_shards([listed("c", "p")], sent_ms=100, now_ms=100)
    made.on_leases([row("c", "p")], 101, 110)
    assert not made.is_readable(made.rows["c"])  # the list may be older than the parent
    assert made.wants_list()
    made.on_shards([listed("c", "p")], sent_ms=115, now_ms=115)
    assert made.is_readable(made.rows["c"])
    assert not made.wants_list()


def test_a_child_waits_for_the_lease_of_a_listed_parent() -> None:
    made = view(row("c", "p"), shards=(listed("p"), listed("c", "p")))
    assert not made.is_readable(made.rows["c"])


def test_leases_of_children_are_created_before_those_of_their_parents() -> None:
    made = view(shards=(listed("p"), listed("c", "p"), listed("d", "c")))
    assert [info.shard for info in made.creatable()] == ["d"]
    made.on_lease(row("d", "c"), 130)
    assert [info.shard for info in made.creatable()] == ["c"]
    assert not made.is_complete()


def test_latest_is_one_time_for_all_first_leases() -> None:
    made = view(shards=(listed("a"), listed("b")), settings=LATEST)
    assert created(made, listed("a")) == at_timestamp(5000)
    made.on_lease(row("a", checkpoint=at_timestamp(5000)), 130)
    assert created(made, listed("b")) == at_timestamp(5000)  # by the next reader


def test_rows_older_than_the_list_do_not_decide_where_shards_begin() -> None:
    made = StreamView("g", "s@1", LATEST)
    made.on_leases([], 100, 110, 5000)  # then others begin the group, and p is split
    made.on_shards([listed("p"), listed("c", "p")], 120, 130)
    assert made.creatable() == []
    made.on_leases([row("p", checkpoint=at_timestamp(5005))], 131, 140, 5031)
    assert [created(made, info) for info in made.listed.values() if info in made.creatable()] == [
        TRIM_HORIZON
    ]


def test_shards_that_are_younger_than_the_group_are_read_from_their_beginning() -> None:
    for settings in (LATEST, LeaseSettings(start=at_timestamp(7))):
        made = view(row("p", checkpoint=BEGUN), shards=(listed("p"),), settings=settings)
        assert created(made, listed("c", "p")) == TRIM_HORIZON


def test_a_grandchild_is_younger_than_the_group_though_its_parent_has_no_lease_yet() -> None:
    shards = (listed("p"), listed("c", "p"), listed("d", "c"))
    made = view(row("p", checkpoint=BEGUN), shards=shards, settings=LATEST)
    assert created(made, listed("d", "c")) == TRIM_HORIZON


def test_a_latest_group_reads_new_shards_after_an_absence_longer_than_the_retention() -> None:
    made = view(row("p", checkpoint=BEGUN), shards=(listed("e", "gone"),), settings=LATEST)
    assert created(made, listed("e", "gone")) == TRIM_HORIZON


def test_a_lease_that_was_removed_is_created_again_and_finished_if_its_child_has_begun() -> None:
    shards = (listed("p"), listed("c", "p"))
    made = view(row("c", "p", checkpoint=BEGUN), shards=shards)
    assert [info.shard for info in made.creatable()] == ["p"]
    assert created(made, listed("p")) == SHARD_END
    made = view(row("c", "p"), shards=shards)
    assert created(made, listed("p")) == TRIM_HORIZON


def test_one_shard_may_have_its_own_start() -> None:
    settings = LeaseSettings(start=TRIM_HORIZON, starts={"b": BEGUN})
    made = view(shards=(listed("a"), listed("b")), settings=settings)
    assert [created(made, listed(shard)) for shard in "ab"] == [TRIM_HORIZON, BEGUN]


def test_a_foreign_row_is_not_changed_and_delays_only_its_children() -> None:
    made = view(shards=(listed("a"), listed("p"), listed("c", "p")))
    for shard in ("a", "c"):
        made.on_lease(row(shard, *({"p"} if shard == "c" else ())), 130)
    made.on_refused("p")
    assert made.is_complete()
    assert made.creatable() == []
    assert made.is_readable(made.rows["a"])
    assert not made.is_readable(made.rows["c"])


@pytest.mark.parametrize(
    ("child", "shards", "deleted"),
    [
        (BEGUN, ("c",), True),
        (TRIM_HORIZON, ("c",), False),  # it shows that the child may be read
        (BEGUN, ("p", "c"), False),  # it would be created again
        (BEGUN, ("c", "d"), False),  # it shows that d is newer than the group
    ],
)
def test_the_lease_of_an_expired_shard_is_deleted_when_no_longer_needed(
    child: Checkpoint, shards: tuple[str, ...], *, deleted: bool
) -> None:
    made = view(row("p", checkpoint=SHARD_END), row("c", "p", checkpoint=child))
    made.on_shards([listed(shard, *({"p"} - {shard})) for shard in shards], 200, 200)
    assert [lease.key.shard for lease in made.deletable()] == (["p"] if deleted else [])


def test_a_scan_older_than_a_write_does_not_change_the_view() -> None:
    made = view(row("a", epoch=3))
    made.on_lease(row("a", epoch=4), 130)
    made.on_leases([row("a", epoch=3)], sent_ms=125, now_ms=140)
    assert made.rows["a"].lease.epoch == 4
    made.on_leases([], sent_ms=126, now_ms=141)
    assert "a" in made.rows
    made.on_leases([row("a")], sent_ms=150, now_ms=160)  # deleted and created again
    assert made.rows["a"].lease.epoch == 0


def test_a_lease_that_could_not_be_renewed_twice_is_refused() -> None:
    with pytest.raises(ConfigError, match="renew_ms=10000"):
        LeaseSettings(duration_ms=15_000)
    with pytest.raises(ConfigError, match="scan_ms is 0"):
        LeaseSettings(scan_ms=0)


def test_each_ancestor_is_visited_once_despite_exponentially_many_paths() -> None:
    shards = [listed("a0")]
    for day in range(100):  # split in the morning, merged in the evening
        shards += [listed(f"b{day}", f"a{day}"), listed(f"c{day}", f"a{day}")]
        shards += [listed(f"a{day + 1}", f"b{day}", f"c{day}")]
    made = view(shards=tuple(shards), settings=LATEST)
    assert created(made, shards[-1]) == at_timestamp(5000)
