"""The conversion of leases of the Kinesis Client Library."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from headrace.core.lease.checkpoint import SHARD_END, TRIM_HORIZON, Checkpoint, at_timestamp
from headrace.core.lease.lease import HashRange
from headrace.errors import ConfigError
from headrace.kinesis.leases.kcl import KclLease, converted, of_stream, renewed


@dataclass(frozen=True)
class Shard:
    shard: str
    parents: frozenset[str] = frozenset()
    hash_range: HashRange | None = None


def kcl(shard: str, checkpoint: str = "17", **given: object) -> KclLease:
    fields: dict[str, object] = {
        "stream": None,
        "sub_sequence": 0,
        "owner": None,
        "counter": 1,
        "parents": frozenset(),
    }
    return KclLease(shard=shard, checkpoint=checkpoint, **{**fields, **given})  # type: ignore[arg-type] # of fields


def checkpoints(leases: list[KclLease], listed: list[Shard], **given: int) -> dict[str, Checkpoint]:
    found = converted("g", "orders@1", leases, listed, now_ms=1000, **given)
    assert all(lease.epoch == lease.beat == 0 and lease.owner is None for lease in found)
    assert [lease.key.shard for lease in found] == sorted(shard.shard for shard in listed)
    assert {lease.key.shard: lease.parents for lease in found} == {
        shard.shard: shard.parents for shard in listed
    }
    return {lease.key.shard: lease.checkpoint for lease in found}


def test_each_kind_of_kcl_checkpoint_is_converted() -> None:
    leases = [
        kcl("a", "TRIM_HORIZON"),
        kcl("b", "LATEST"),
        kcl("c", "AT_TIMESTAMP"),
        kcl("d", "SHARD_END"),
        kcl("e", "49590338271490256608559692538361571095921575989136588898", sub_sequence=3),
        kcl("f", "7", sub_sequence=None),
        kcl("gone", "7"),
    ]
    listed = [Shard(name) for name in "fedcba"]
    assert checkpoints(leases, listed, at_timestamp_ms=500) == {
        "a": TRIM_HORIZON,
        "b": at_timestamp(1000),
        "c": at_timestamp(500),
        "d": SHARD_END,
        "e": Checkpoint("49590338271490256608559692538361571095921575989136588898", 3),
        "f": Checkpoint("7"),
    }
    with pytest.raises(ConfigError, match=r"c has not been read yet\. It begins at a time"):
        checkpoints(leases, listed)
    with pytest.raises(ConfigError, match="the checkpoint of a has an unknown form: 'x' is no"):
        checkpoints([kcl("a", "x")], listed)


def test_shards_without_a_lease_are_finished_or_not_begun() -> None:
    """Shards 1 and 2 were merged into 3, which was split into 4 and 5. 6 is a child of 4. The library has 3 only."""
    listed = [
        Shard("1"),
        Shard("2"),
        Shard("3", frozenset({"1", "2"})),
        Shard("4", frozenset({"3"})),
        Shard("5", frozenset({"3"})),
        Shard("6", frozenset({"4"})),
        Shard("7", frozenset({"0"})),  # its parent has expired
    ]
    assert checkpoints([kcl("3")], listed) == {
        "1": SHARD_END,
        "2": SHARD_END,
        "3": Checkpoint("17", 0),
        "4": TRIM_HORIZON,
        "5": TRIM_HORIZON,
        "6": TRIM_HORIZON,
        "7": TRIM_HORIZON,
    }


def test_kcl_leases_of_several_streams_are_distinguished() -> None:
    one, other = kcl("a", stream="orders:5"), kcl("b", stream="users:5")
    assert of_stream([kcl("a")], "anything", 1) == [kcl("a")]
    assert of_stream([one, other], "orders", 5) == [one]
    assert of_stream([one, other], "orders", 6) == [one]  # an application may give any number
    again = kcl("c", stream="orders:6")
    assert of_stream([one, again], "orders", 6) == [again]
    with pytest.raises(ConfigError, match="leases of orders:5, orders:6, but none of orders:7"):
        of_stream([one, again], "orders", 7)
    with pytest.raises(
        ConfigError, match=r"no leases of the stream x\. It has leases of orders, users"
    ):
        of_stream([one, other], "x", 5)


def test_an_owner_that_renews_is_alive() -> None:
    before = [kcl("a", owner="x"), kcl("b", owner="y"), kcl("c")]
    assert renewed(before, before) == []
    after = [kcl("a", owner="x", counter=2), kcl("b", owner="y"), kcl("d", owner="z")]
    assert renewed(before, after) == ["x", "z"]
