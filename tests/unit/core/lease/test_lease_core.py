"""One member, action by action. `tests/simulation/leases` simulates many members, with faults."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest

from headrace.core.lease.actions import (
    UNKNOWN,
    Action,
    Ask,
    Assigned,
    Create,
    Drain,
    Give,
    ListShards,
    Outcome,
    Renew,
    Restart,
    Revoked,
    Scan,
    Take,
    Why,
)
from headrace.core.lease.checkpoint import SHARD_END, TRIM_HORIZON, Checkpoint
from headrace.core.lease.lease import HashRange, Lease, LeaseKey
from headrace.core.lease.machine import LeaseCore
from headrace.core.lease.settings import LeaseSettings
from headrace.core.lease.view import StreamView
from headrace.errors import ConfigError

STREAM = "s@1"
BEGAN_MS = -1_000_000  # a monotonic clock may start at any number
A = LeaseKey("g", STREAM, "a")
YES, NO = True, False
ME = "me"


@dataclass(frozen=True)
class Listed:
    shard: str
    parents: frozenset[str] = frozenset()
    hash_range: HashRange | None = None


class Even:
    """Random numbers that are always the mean."""

    def random(self) -> float:
        return 0.5


class Bench:
    """A member, its clock, and the actions that it has returned."""

    def __init__(self, *rows: Lease, shards: Sequence[str] = ("a",), **settings: Any) -> None:
        self.now_ms = BEGAN_MS
        self.core = LeaseCore("g", [STREAM], ME, LeaseSettings(**settings), Even())
        self.done: list[Action] = self.core.tick(self.now_ms)
        self.reply(ListShards(STREAM), [Listed(shard) for shard in shards])
        self.reply(Scan(STREAM), list(rows))

    def reply(self, request: Any, outcome: Outcome, *, took_ms: int = 0) -> list[Action]:
        sent_ms = self.now_ms
        self.now_ms += took_ms
        actions = self.core.on_reply(request, sent_ms, self.now_ms, outcome, 0)
        self.done += actions
        return actions

    def wait(self, wait_ms: int) -> list[Action]:
        """Tick at every deadline without answering requests; return the actions."""
        wanted: list[Action] = []
        end_ms = self.now_ms + wait_ms
        while (due_ms := self.core.next_deadline_ms) is not None and due_ms <= end_ms:
            self.now_ms = max(self.now_ms, due_ms)
            wanted += self.core.tick(self.now_ms)
        self.now_ms = end_ms
        self.done += wanted
        return wanted

    def last(self, kind: type[Any]) -> Any:
        return next(action for action in reversed(self.done) if isinstance(action, kind))


def row(shard: str = "a", **values: Any) -> Lease:
    return Lease(key=A._replace(shard=shard), checkpoint=TRIM_HORIZON, **values)


def holder(*, took_ms: int = 0, **settings: Any) -> tuple[Bench, Lease]:
    """Return a member that has just taken a lease."""
    bench = Bench(row(), **settings)
    lease = row(owner="me", epoch=1, beat=1)
    bench.reply(bench.last(Take), lease, took_ms=took_ms)
    return bench, lease


def renewed(lease: Lease, request: Any) -> Lease:
    return replace(lease, checkpoint=request.checkpoint or lease.checkpoint, beat=request.beat)


def of(actions: list[Action], *kinds: type[Any]) -> list[Any]:
    return [action for action in actions if isinstance(action, kinds)]


def test_a_member_scans_at_once_even_if_its_clock_is_negative() -> None:
    assert Bench().done[:2] == [Scan(STREAM), ListShards(STREAM)]


def test_a_lease_is_measured_from_the_time_before_the_request() -> None:
    bench, lease = holder(took_ms=4000)
    assert bench.done[-1] == Assigned(lease)
    bench.now_ms = BEGAN_MS + 26_999
    assert bench.core.valid(A, bench.now_ms)
    assert not bench.core.valid(A, bench.now_ms + 1)


def test_an_answer_after_the_end_of_the_lease_gives_no_lease() -> None:
    bench, _ = holder(took_ms=27_000)
    assert not of(bench.done, Assigned)
    seen = row(owner="me", epoch=1, beat=1)
    assert of(bench.reply(Scan(STREAM), [seen]), Take) == [Take(seen)]


def test_a_renewal_without_an_answer_is_repeated_until_the_lease_expires() -> None:
    bench, _ = holder()
    revoked: list[Action] = []
    while not revoked:
        for request in bench.wait(500):
            revoked += [request] if isinstance(request, Revoked) else []
            if isinstance(request, Renew):
                bench.reply(request, UNKNOWN)
    assert revoked == [Revoked(A, Why.LOST)]
    assert bench.now_ms == BEGAN_MS + 27_000
    assert len(of(bench.done, Renew)) > 10


def test_a_refused_renewal_ends_the_lease_at_once() -> None:
    bench, _ = holder()
    assert bench.reply(bench.wait(10_000)[-1], None) == [Revoked(A, Why.LOST)]


def test_another_owner_in_a_scan_ends_the_lease_at_once() -> None:
    bench, _ = holder()
    thief = row(owner="other", epoch=2, beat=2)
    assert of(bench.reply(Scan(STREAM), [thief]), Revoked) == [Revoked(A, Why.LOST)]


def test_a_checkpoint_is_written_once_a_second_and_renews_the_lease() -> None:
    bench, lease = holder()
    (first,) = bench.core.advance(A, Checkpoint("9"), bench.now_ms)
    assert isinstance(first, Renew)
    bench.reply(first, renewed(lease, first))
    for position in (
        "9",
        "10",
        "8",
    ):
        # The same: no write, no error; too soon; an older one is ignored.
        actions = bench.core.advance(A, Checkpoint(position), bench.now_ms, in_flight=True)
        assert actions == []
    assert not of(bench.wait(999), Renew)
    (second,) = of(bench.wait(1), Renew)
    assert second.checkpoint == Checkpoint("10")
    bench.reply(second, renewed(lease, second))
    assert not of(bench.wait(9999), Renew)
    assert of(bench.wait(1), Renew)


def test_a_checkpoint_waits_until_no_record_is_in_flight() -> None:
    bench, _ = holder()
    assert bench.core.advance(A, Checkpoint("1"), bench.now_ms, in_flight=True) == []
    bench.now_ms += 100
    assert bench.core.advance(A, Checkpoint("2"), bench.now_ms, in_flight=True) == []
    (write,) = of(bench.core.advance(A, Checkpoint("3"), bench.now_ms), Renew)
    assert write.checkpoint == Checkpoint("3")


def test_a_checkpoint_waits_at_most_half_of_checkpoint_ms_for_records_in_flight() -> None:
    bench, _ = holder()
    assert bench.core.advance(A, Checkpoint("1"), bench.now_ms, in_flight=True) == []
    assert not of(bench.wait(499), Renew)
    (write,) = of(bench.wait(1), Renew)
    assert write.checkpoint == Checkpoint("1")


def test_checkpoints_at_quiet_moments_are_not_more_frequent() -> None:
    bench, lease = holder()
    writes, began_ms = 0, bench.now_ms
    for number in range(1, 101):
        actions = [
            *bench.core.advance(A, Checkpoint(str(number)), bench.now_ms),
            *bench.wait(200),  # five quiet moments a second
        ]
        for write in of(actions, Renew):
            writes += 1
            lease = renewed(lease, write)
            bench.reply(write, lease)
    assert bench.now_ms - began_ms == 20_000
    assert 19 <= writes <= 21


def test_a_too_large_checkpoint_ms_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"checkpoint_ms=15001 is too much .*half of it"):
        LeaseSettings(checkpoint_ms=15_001)


def test_every_write_of_an_owner_has_a_higher_beat() -> None:
    bench, lease = holder()
    (write,) = of(bench.core.advance(A, Checkpoint("9"), bench.now_ms), Renew)
    bench.core.advance(A, Checkpoint("10"), bench.now_ms)
    bench.reply(write, UNKNOWN)
    (again,) = of(bench.wait(1000), Renew)
    bench.reply(again, renewed(lease, again))
    (later,) = of(bench.wait(10_000), Renew)
    # An earlier attempt to take the lease may have written beat 2.
    assert lease.beat + 1 < write.beat < again.beat < later.beat
    assert (write.checkpoint, again.checkpoint) == (Checkpoint("9"), Checkpoint("10"))


def test_a_renewal_that_was_ignored_for_its_beat_does_not_count() -> None:
    bench, lease = holder()
    renewal = of(bench.wait(10_000), Renew)[-1]
    bench.reply(renewal, replace(lease, beat=50))
    (again,) = of(bench.wait(1000), Renew)
    assert again.beat > 50
    assert not bench.core.valid(A, BEGAN_MS + 27_000)
    bench.reply(again, renewed(lease, again))
    assert bench.core.valid(A, BEGAN_MS + 27_000)


def test_a_member_that_asks_gets_the_lease_with_the_last_checkpoint_in_one_write() -> None:
    bench, lease = holder()
    renewal = of(bench.wait(10_000), Renew)[-1]
    asked = replace(lease, beat=renewal.beat, next_owner="other")
    drained_by_ms = bench.now_ms + 30_000
    assert bench.reply(renewal, asked) == [Drain(A, Why.HANDOVER, drained_by_ms)]
    assert bench.core.valid(A, bench.now_ms)  # begun records are finished
    (give,) = bench.core.on_drained(A, bench.now_ms, Checkpoint("7"))
    assert not bench.core.valid(A, bench.now_ms)
    assert give == Give(A, 1, "other", Checkpoint("7"))
    assert bench.reply(give, YES) == [Revoked(A, Why.HANDOVER)]


def test_a_slow_hand_over_is_forced_after_the_readers_were_notified() -> None:
    bench, lease = holder()
    bench.reply(Scan(STREAM), [replace(lease, next_owner="other")])
    wanted: list[Action] = []
    (write,) = bench.core.advance(A, Checkpoint("7"), bench.now_ms)
    lease = renewed(lease, write)
    bench.reply(write, replace(lease, next_owner="other"))
    for _ in range(60):
        for action in bench.wait(500):
            wanted.append(action)
            if isinstance(action, Renew):
                lease = renewed(lease, action)
                bench.reply(action, replace(lease, next_owner="other"))
    gone = of(wanted, Revoked, Give)
    assert gone == [Revoked(A, Why.HANDOVER), Give(A, 1, "other", Checkpoint("7"))]


def test_a_hand_over_that_is_not_forced_waits_for_the_records() -> None:
    bench, lease = holder(handover_forced=False)
    actions = bench.reply(Scan(STREAM), [replace(lease, next_owner="other")])
    assert of(actions, Drain) == [Drain(A, Why.HANDOVER, None)]


def test_a_member_decides_by_its_own_clock_that_another_is_dead() -> None:
    bench = Bench(row(owner="other", epoch=1, beat=7))
    for beat, wait_ms, taken in (
        (7, 32_999, False),
        (8, 1, False),
        (8, 32_999, False),
        (8, 1, True),
    ):
        bench.now_ms += wait_ms
        lease = row(owner="other", epoch=1, beat=beat)
        assert bool(of(bench.reply(Scan(STREAM), [lease]), Take)) is taken


def test_a_scan_follows_the_end_of_a_silent_members_lease() -> None:
    lease = row(owner="other", epoch=1, beat=7)
    bench = Bench(lease)  # scans every 10 s, and 33 s is not a multiple of that
    seen_ms, looked = bench.now_ms, []
    while not of(bench.done, Take):
        if of(bench.wait(100), Scan):
            looked.append(bench.now_ms - seen_ms)
            bench.reply(Scan(STREAM), [lease])
    assert looked == [100, 10_100, 20_100, 30_100, 33_000]
    assert not of(bench.wait(9_000), Scan)


def test_the_first_lease_of_each_shard_is_computed_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    decided: list[str] = []
    first_lease = StreamView.first_lease

    def counted(view: StreamView, info: Any) -> Lease:
        decided.append(info.shard)
        return first_lease(view, info)

    monkeypatch.setattr(StreamView, "first_lease", counted)
    bench = Bench(shards=[str(number) for number in range(50)])
    for create in of(bench.done, Create):
        bench.reply(create, YES)
    assert len(decided) == 50


def test_a_member_asks_for_its_missing_leases_and_takes_them_when_transferred() -> None:
    rows = [row(shard, owner="other", epoch=1) for shard in "abcdef"]
    bench = Bench(*rows, shards="abcdef", asked_at_once=2)
    asks = of(bench.done, Ask)
    assert len(asks) == 2
    assert not of(bench.reply(Scan(STREAM), rows), Ask)
    for ask in asks:
        bench.reply(ask, YES)
    wanted = {ask.key for ask in asks}
    asked = [replace(lease, next_owner="me") if lease.key in wanted else lease for lease in rows]
    assert not of(bench.reply(Scan(STREAM), asked), Ask)
    first = asked.index(next(lease for lease in asked if lease.next_owner))
    asked[first] = replace(asked[first], owner=None, epoch=2)
    actions = of(bench.reply(Scan(STREAM), asked), Take, Ask)
    assert actions == [Take(asked[first])]
    taken = replace(asked[first], owner="me", epoch=3, beat=1, next_owner=None)
    bench.reply(actions[0], taken)
    asked[first] = taken
    assert len(of(bench.reply(Scan(STREAM), asked), Ask)) == 1  # and one lease is being transferred


def test_a_refused_request_for_a_lease_does_not_count() -> None:
    rows = [row(shard, owner="other", epoch=1) for shard in "abcd"]
    bench = Bench(*rows, shards="abcd", asked_at_once=1)
    bench.reply(bench.last(Ask), NO)
    assert len(of(bench.reply(Scan(STREAM), rows), Ask)) == 1


def test_a_transferred_lease_is_reserved_for_its_next_owner() -> None:
    given = row(epoch=2, beat=7, next_owner="other")
    bench = Bench(given)
    assert not of(bench.done, Take)
    bench.now_ms += 5_999
    assert not of(bench.reply(Scan(STREAM), [given]), Take)
    looked = bench.wait(1)  # at the end of the reservation
    assert Scan(STREAM) in looked
    assert of(bench.reply(Scan(STREAM), [given]), Take) == [Take(given)]


def test_a_lease_transferred_to_a_dead_member_is_taken_back() -> None:
    bench, lease = holder()
    bench.reply(Scan(STREAM), [replace(lease, next_owner="dead")])
    (give,) = bench.core.on_drained(A, bench.now_ms)
    bench.reply(give, YES)
    given_ms = bench.now_ms
    given = replace(lease, owner=None, epoch=2, next_owner="dead")
    while not of(bench.wait(100), Scan):
        assert bench.now_ms < given_ms + 6_200
    assert of(bench.reply(Scan(STREAM), [given]), Take) == [Take(given)]


def test_an_owner_that_is_asked_for_a_lease_scans_for_further_requests() -> None:
    bench, lease = holder()
    bench.reply(Scan(STREAM), [lease])
    renewal = of(bench.wait(10_000), Renew)[-1]
    bench.reply(renewal, replace(lease, beat=renewal.beat, next_owner="other"))
    assert Scan(STREAM) in bench.wait(1)


def test_a_member_with_all_shards_scans_only_when_it_lists() -> None:
    bench, lease = holder()
    bench.reply(Scan(STREAM), [lease])
    wanted: list[Action] = []
    for _ in range(100):  # ten minutes, in which others would scan sixty times
        for action in bench.wait(6_000):
            wanted.append(action)
            if isinstance(action, Renew):
                bench.reply(action, renewed(lease, action))
            elif isinstance(action, ListShards):
                bench.reply(action, [Listed("a")])
            elif isinstance(action, Scan):
                bench.reply(action, [replace(lease, beat=bench.last(Renew).beat)])
    assert 9 <= len(of(wanted, Scan)) <= 10
    assert len(of(wanted, ListShards)) == 10


def test_a_member_scans_for_leases_that_others_have_created() -> None:
    bench = Bench(shards=["a", "b"])
    for create in of(bench.done, Create):
        bench.reply(create, NO)
    assert Scan(STREAM) in bench.wait(1)


def test_a_member_that_has_lost_a_shard_scans_again() -> None:
    bench, lease = holder()
    bench.reply(Scan(STREAM), [lease])
    assert not of(bench.wait(9_999), Scan)
    bench.reply(bench.wait(1)[-1], None)
    assert of(bench.wait(12_500), Scan)


def test_a_member_never_exceeds_its_limit_of_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{__name__}.ME", "me/2")
    bench = Bench(*(row(shard) for shard in "abcd"), shards="abcd")
    takes = of(bench.done, Take)
    assert len(takes) == 2
    rows = [row(shard) for shard in "abcd"]
    assert not of(bench.reply(Scan(STREAM), rows), Take)  # two leases are being transferred
    lost = [replace(lease, owner="me/2", epoch=1, beat=1) for lease in rows]
    bench.reply(takes[0], replace(takes[0].seen, owner="me/2", epoch=1, beat=1))
    bench.reply(takes[1], UNKNOWN)
    assert len(of(bench.reply(Scan(STREAM), lost), Take)) == 1


def test_children_have_leases_before_the_end_is_written() -> None:
    bench, _ = holder()
    children = [Listed("b", frozenset({"a"})), Listed("c", frozenset({"a"}))]
    creates = of(bench.core.on_ended(A, children, bench.now_ms), Create)
    assert [create.lease.checkpoint for create in creates] == [TRIM_HORIZON] * 2
    assert not bench.core.valid(A, bench.now_ms)
    assert not of(bench.reply(creates[0], YES), Give)
    assert not of(bench.reply(creates[1], UNKNOWN), Give)
    again = of(bench.wait(2000), Create)
    (give,) = of(bench.reply(again[-1], NO), Give)
    assert give == Give(A, 1, None, SHARD_END)
    assert Revoked(A, Why.ENDED) in bench.reply(give, YES)


def test_the_end_of_a_shard_without_known_children_waits_for_a_list() -> None:
    bench, _ = holder()
    assert bench.core.on_ended(A, [], bench.now_ms) == []
    assert ListShards(STREAM) in bench.wait(1)
    listed = [Listed("a"), Listed("b", frozenset({"a"}))]
    assert [create.key.shard for create in of(bench.reply(ListShards(STREAM), listed), Create)] == [
        "b"
    ]


def test_advance_refuses_the_end_of_a_shard() -> None:
    bench, _ = holder()
    with pytest.raises(ValueError, match="on_ended"):
        bench.core.advance(A, SHARD_END, bench.now_ms)


def test_a_stalled_shard_is_restarted_and_then_left_to_other_members() -> None:
    bench, lease = holder(stalled_ms=20_000, duration_ms=120_000, renew_ms=60_000)
    assert of(bench.wait(20_000), Restart) == [Restart(A)]
    bench.core.progressed(A, bench.now_ms)
    assert of(bench.wait(20_000), Restart, Drain) == [Restart(A)]
    drains = of(bench.wait(20_000), Drain)
    assert [drain.why for drain in drains] == [Why.STALLED]
    bench.reply(bench.last(Renew), renewed(lease, bench.last(Renew)))
    (give,) = bench.core.on_drained(A, bench.now_ms)
    bench.reply(give, YES)
    free = row(epoch=2, beat=2)
    assert not of(bench.reply(Scan(STREAM), [free]), Take)
    bench.now_ms += 120_000 + 3_000 + 20_000
    assert of(bench.reply(Scan(STREAM), [free]), Take) == [Take(free)]


def test_a_closed_member_releases_all_leases() -> None:
    bench, _ = holder()
    assert bench.core.close(bench.now_ms) == [Drain(A, Why.SHUTDOWN, bench.now_ms + 30_000)]
    (give,) = bench.core.on_drained(A, bench.now_ms, Checkpoint("5"))
    assert give == Give(A, 1, None, Checkpoint("5"))
    bench.reply(give, YES)
    assert bench.core.is_closed
    assert bench.core.next_deadline_ms is None


def test_a_lease_taken_during_close_is_released_unread() -> None:
    bench = Bench(row())
    bench.core.close(bench.now_ms)
    actions = bench.reply(bench.last(Take), row(owner="me", epoch=1, beat=1))
    assert actions == [Give(A, 1, None, TRIM_HORIZON)]
    bench.reply(actions[0], YES)
    assert bench.core.is_closed
