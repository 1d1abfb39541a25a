"""How shards are divided among members."""

from __future__ import annotations

from headrace.core.lease.checkpoint import TRIM_HORIZON
from headrace.core.lease.lease import Lease, LeaseKey
from headrace.core.lease.taking import Division, target


def lease(number: int, owner: str | None, rate: float = 0.0, asker: str | None = None) -> Lease:
    key = LeaseKey("g", "s@1", f"shardId-{number:012}")
    return Lease(key=key, checkpoint=TRIM_HORIZON, owner=owner, bytes_per_s=rate, next_owner=asker)


def division(me: str, *leases: Lease) -> Division:
    made = Division(me)
    for each in leases:
        if each.owner is None:
            made.free.append(each)
        else:
            made.add(each)
    return made


def test_a_target_is_the_whole_divided_rounded_up() -> None:
    assert [target(7, members) for members in (1, 2, 3, 7, 9)] == [7, 4, 3, 1, 1]


def test_free_leases_are_taken_up_to_the_target() -> None:
    made = division("me", lease(0, "other"), *(lease(number, None) for number in range(1, 6)))
    assert len(made.takes()) == 3
    assert made.wish() is None  # while there are free ones nobody is asked


def test_whoever_asks_is_a_member_before_it_has_a_lease() -> None:
    made = division("me", lease(0, "a", asker="b"), *(lease(number, "a") for number in range(1, 6)))
    assert len(made.leases) == 3
    assert made.target == 2


def test_the_member_with_most_is_asked() -> None:
    made = division(
        "me",
        *(lease(number, "a") for number in range(3)),
        *(lease(number, "b") for number in range(3, 8)),
    )
    wish = made.wish()
    assert wish is not None
    assert wish.owner == "b"


def test_nobody_is_asked_for_what_would_only_move_the_want() -> None:
    made = division("me", lease(0, "me"), lease(1, "a"), lease(2, "a"))
    assert made.wish() is None


def test_a_lease_that_is_asked_for_already_is_left_alone() -> None:
    made = division(
        "me", lease(0, "a", asker="b"), lease(1, "a", asker="b"), lease(2, "a"), lease(3, "a")
    )
    wish = made.wish()
    assert wish is not None
    assert wish.key.shard in {"shardId-000000000002", "shardId-000000000003"}


def test_load_moves_where_numbers_are_even() -> None:
    busy = [lease(0, "a", 1000), lease(1, "a", 400), lease(2, "a", 300)]
    idle = [lease(3, "me", 10), lease(4, "me", 10), lease(5, "me", 10)]
    wish = division("me", *busy, *idle).wish()
    assert wish is not None
    assert wish.bytes_per_s == 1000  # 730 and 1010 afterwards, instead of 1700 and 30


def test_one_hot_shard_is_not_passed_around() -> None:
    hot, idle = lease(0, "a", 1_000_000), [lease(number, "b", 10) for number in range(1, 8)]
    assert division("b", hot, *idle).wish() is None
    assert division("a", hot, *idle).wish() is None


def test_a_small_difference_moves_nothing() -> None:
    a = [lease(number, "a", 100) for number in range(20)]
    me = [lease(number, "me", 92) for number in range(20, 40)]
    assert division("me", *a, *me).wish() is None


def test_a_hundred_shards_reach_the_second_member_one_by_one() -> None:
    owners = ["a"] * 100
    for _ in range(50):
        wish = division("me", *(lease(n, owner, 50.0) for n, owner in enumerate(owners))).wish()
        assert wish is not None
        owners[int(wish.key.shard[-12:])] = "me"
    assert division("me", *(lease(n, owner, 50.0) for n, owner in enumerate(owners))).wish() is None
    assert division("a", *(lease(n, owner, 50.0) for n, owner in enumerate(owners))).wish() is None
