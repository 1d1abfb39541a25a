"""Records of an aggregate that was written to another shard, whose readers drop some of the records."""

from __future__ import annotations

from headrace.core.lease.lease import HashRange
from headrace.kinesis.hash_keys import HASH_KEYS
from headrace.kinesis.producing.core import StreamCore
from headrace.kinesis.producing.lanes import PutResult
from headrace.kinesis.producing.records import outgoing
from headrace.kinesis.producing.settings import ProducerSettings
from headrace.kinesis.producing.shards import ShardMap

WHOLE = ShardMap({"A": HashRange(0, HASH_KEYS - 1)})
SPLIT = ShardMap(
    {"B": HashRange(0, HASH_KEYS // 2 - 1), "C": HashRange(HASH_KEYS // 2, HASH_KEYS - 1)},
    {"A": HashRange(0, HASH_KEYS - 1)},
)


def test_a_misplaced_record_is_given_up_when_its_time_ends() -> None:
    """`flush` waits for the record, and would wait for ever while the shards cannot be listed again."""
    settings = ProducerSettings(aggregate_bytes=50_000, delivery_timeout_ms=1000, linger_ms=0)
    core = StreamCore("s", settings, lambda: 0.5)
    core.on_map(WHOLE)
    old = outgoing(b"1", "k1", 0, record_bytes=1 << 20, now_ms=0)
    young = outgoing(b"2", "k2", HASH_KEYS - 1, record_bytes=1 << 20, now_ms=900)
    core.add(old)
    core.add(young)
    core.flushing = True
    request = core.next_request(950)
    assert request is not None
    assert core.on_results(request, [PutResult("C", "1")], 960) == [], (
        "the stream was split meanwhile"
    )

    assert core.expire(1001) == [], "the position may still arrive"
    (written,) = core.on_map(SPLIT)
    assert written.record is young

    deadline_ms = core.next_deadline_ms(1002)
    assert deadline_ms is not None
    assert deadline_ms <= 1002
    (late,) = core.expire(1002)
    assert late.record is old
    assert "not written to s within delivery_timeout_ms=1000" in str(late.error)
    assert core.idle
