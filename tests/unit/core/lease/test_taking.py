"""The division of shards among members."""

from __future__ import annotations

from headrace.core.lease.checkpoint import TRIM_HORIZON
from headrace.core.lease.lease import Lease, LeaseKey
from headrace.core.lease.names import most_of, named
from headrace.core.lease.taking import LeaseDivision, level


def lease(number: int, owner: str | None, rate: float = 0.0, asker: str | None = None) -> Lease:
    key = LeaseKey("g", "s@1", f"shardId-{number:012}")
    return Lease(key=key, checkpoint=TRIM_HORIZON, owner=owner, bytes_per_s=rate, next_owner=asker)


def division(me: str, *leases: Lease) -> LeaseDivision:
    made = LeaseDivision(me)
    for each in leases:
        if each.owner is None:
            made.free.append(each)
        else:
            made.add(each)
    return made


def test_a_target_is_the_number_of_shards_divided_by_the_members_rounded_up() -> None:
    assert [level(7, [None] * members) for members in (1, 2, 3, 7, 9)] == [7, 4, 3, 1, 1]


def test_shards_beyond_the_limit_of_a_member_are_divided_among_the_others() -> None:
    assert level(100, [10, None, None]) == 45
    assert level(100, [10, 40, None]) == 50
    assert level(100, [10, 20, 200]) == 70
    assert level(10, [7, 8]) == 5  # no member exceeds its limit
    assert level(100, [10, 20]) == 90  # all members are at their limits


def test_a_member_name_contains_the_maximum_of_shards() -> None:
    assert named("", "me", None) == "me"
    assert most_of(named("", "me", 12)) == 12
    assert [most_of(name) for name in ("me", "12", "a/b", "")] == [None] * 4


def test_a_member_at_its_limit_neither_takes_nor_asks_for_leases() -> None:
    rows = [lease(number, "a") for number in range(4)]
    assert len(division("me/3", *rows).wishes(9)) == 2
    assert len(division("me/1", *rows).wishes(9)) == 1
    assert not division("me/1", lease(9, "me/1"), *rows).wishes(9)
    assert len(division("me/2", *(lease(number, None) for number in range(5))).takes()) == 2
    busy = [lease(number, "a", 1000) for number in range(2)]
    assert division("me/1", lease(9, "me/1"), *busy).wish() is None


def test_other_members_take_the_leases_beyond_a_members_limit() -> None:
    rows = [lease(0, "a/2"), lease(1, "a/2"), *(lease(number, None) for number in range(2, 12))]
    assert len(division("me", *rows).takes()) == 10
    rich = [lease(number, "b") for number in range(2, 12)]
    assert len(division("me", *rows[:2], *rich).wishes(99)) == 5


def test_the_load_of_a_member_at_its_limit_stops_no_other_from_asking() -> None:
    a = [lease(number, "a", 1000) for number in range(4)]
    me = [lease(number, "me", 10) for number in range(4, 8)]
    idle = lease(9, "b/1", 1)
    assert division("me", *a, *me, idle).wish() is not None


def test_free_leases_are_taken_up_to_the_target() -> None:
    made = division("me", lease(0, "other"), *(lease(number, None) for number in range(1, 6)))
    assert len(made.takes()) == 3
    assert not made.wishes(9)  # no member is asked while leases are free


def test_a_process_that_asks_is_a_member_before_it_has_a_lease() -> None:
    made = division("me", lease(0, "a", asker="b"), *(lease(number, "a") for number in range(1, 6)))
    assert len(made.leases) == 3
    assert made.level == 2


def test_a_lease_is_requested_from_the_member_with_most_leases() -> None:
    made = division(
        "me",
        *(lease(number, "a") for number in range(3)),
        *(lease(number, "b") for number in range(3, 8)),
    )
    assert [wish.owner for wish in made.wishes(9)] == ["b", "b"]


def test_no_lease_is_requested_if_its_owner_would_fall_below_its_share() -> None:
    made = division("me", lease(0, "me"), lease(1, "a"), lease(2, "a"))
    assert not made.wishes(9)


def test_a_lease_with_a_next_owner_is_not_requested_again() -> None:
    made = division(
        "me", lease(0, "a", asker="b"), lease(1, "a", asker="b"), lease(2, "a"), lease(3, "a")
    )
    (wish,) = made.wishes(9)
    assert wish.key.shard in {"shardId-000000000002", "shardId-000000000003"}


def test_a_lease_moves_by_load_if_the_numbers_are_even() -> None:
    busy = [lease(0, "a", 1000), lease(1, "a", 400), lease(2, "a", 300)]
    idle = [lease(3, "me", 10), lease(4, "me", 10), lease(5, "me", 10)]
    wish = division("me", *busy, *idle).wish()
    assert wish is not None
    assert wish.bytes_per_s == 1000  # 730 and 1010 afterwards, instead of 1700 and 30


def test_a_hot_shard_does_not_move_back_and_forth() -> None:
    hot, idle = lease(0, "a", 1_000_000), [lease(number, "b", 10) for number in range(1, 8)]
    assert division("b", hot, *idle).wish() is None
    assert division("a", hot, *idle).wish() is None


def test_a_small_difference_in_load_moves_no_lease() -> None:
    a = [lease(number, "a", 100) for number in range(20)]
    me = [lease(number, "me", 92) for number in range(20, 40)]
    assert division("me", *a, *me).wish() is None


def test_a_hundred_shards_reach_the_second_member_and_then_none_moves() -> None:
    owners = ["a"] * 100

    def divided(me: str) -> LeaseDivision:
        return division(me, *(lease(number, owner, 50.0) for number, owner in enumerate(owners)))

    for asked in (32, 18, 0):
        wishes = divided("me").wishes(32)
        assert len(wishes) == asked
        for wish in wishes:
            owners[int(wish.key.shard[-12:])] = "me"
    for member in ("me", "a"):
        assert not divided(member).wishes(32)
        assert divided(member).wish() is None
