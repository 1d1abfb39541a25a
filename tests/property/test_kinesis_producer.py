"""A stream that refuses and loses requests, and splits: records of a key stay in order, and none is lost."""

from __future__ import annotations

import random
from collections import defaultdict

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.core.lease.lease import HashRange
from headrace.errors import KinesisError
from headrace.kinesis.aggregation.decoding import taken_apart
from headrace.kinesis.aggregation.encoding import MAGIC, Aggregate
from headrace.kinesis.hash_keys import HASH_KEYS
from headrace.kinesis.producing.core import THROTTLED, PutRequest, RecordOutcome, StreamCore
from headrace.kinesis.producing.lanes import Parcel, PutResult
from headrace.kinesis.producing.records import Outgoing, outgoing
from headrace.kinesis.producing.settings import ProducerSettings
from headrace.kinesis.producing.shards import ShardMap
from tests.effort import examples

TIMEOUTS_MS = (200, 5_000)


class Stream:
    """A model of Kinesis that keeps the records of each key in the order in which readers would see them."""

    def __init__(self, chance: random.Random) -> None:
        self.random = chance
        self.open = {"shardId-000000000000": HashRange(0, HASH_KEYS - 1)}
        self.closed: dict[str, HashRange] = {}
        self.shards = 1
        self.sequence = 0
        self.seen: dict[str, list[int]] = defaultdict(list)
        self.calm = False

    def new_shard(self, first: int, last: int) -> None:
        self.open[f"shardId-{self.shards:012}"] = HashRange(first, last)
        self.shards += 1

    def reshard(self) -> None:
        shard = self.random.choice(sorted(self.open))
        first, last = self.closed[shard] = self.open.pop(shard)
        neighbour = next(
            (name for name, hashes in self.open.items() if hashes.first == last + 1), None
        )
        if neighbour is not None and self.random.random() < 0.4:
            self.closed[neighbour] = self.open.pop(neighbour)
            self.new_shard(first, self.closed[neighbour].last)
        else:
            middle = self.random.randrange(first, last)
            self.new_shard(first, middle)
            self.new_shard(middle + 1, last)

    def put(self, parcel: Parcel) -> PutResult:
        if not self.calm and self.random.random() < 0.2:
            shard = self.shard_of(parcel)
            return PutResult(
                error=THROTTLED, message=f"Rate exceeded for shard {shard} in stream orders"
            )
        if not self.calm and self.random.random() < 0.1:
            return PutResult(error="InternalFailure", message="Internal Service Failure")
        shard = self.shard_of(parcel)
        for record in parcel.records:
            if (
                not parcel.aggregated
                or self.open[shard].first <= record.hash_key <= self.open[shard].last
            ):
                self.seen[record.partition_key].append(record.ticket)
        self.sequence += 1
        return PutResult(shard, str(self.sequence))

    def shard_of(self, parcel: Parcel) -> str:
        hash_key = (
            int(parcel.explicit_hash_key)
            if parcel.explicit_hash_key
            else parcel.records[0].hash_key
        )
        return next(name for name, (first, last) in self.open.items() if first <= hash_key <= last)


class Harness:
    """A core, its stream, and the requests between them."""

    def __init__(self, seed: int, *, aggregated: bool) -> None:
        self.random = random.Random(seed)
        self.stream = Stream(self.random)
        self.settings = ProducerSettings(
            request_records=self.random.choice([1, 3, 500]),
            request_bytes=2_000,
            record_bytes=400,
            aggregate_bytes=self.random.choice([60, 150, 400]) if aggregated else 0,
            max_in_flight=self.random.choice([1, 2, 8]),
            delivery_timeout_ms=self.random.choice(TIMEOUTS_MS),
        )
        self.core = StreamCore("orders", self.settings, self.random.random)
        self.now_ms = 0
        self.given: dict[str, list[int]] = defaultdict(list)
        self.fates: dict[int, RecordOutcome] = {}
        self.under_way: list[PutRequest] = []
        self.lost: set[int] = set()
        self.poison: set[int] = set()
        self.settings_are_plain = not aggregated
        self.records: list[Outgoing] = []

    def take(self, outcomes: list[RecordOutcome]) -> None:
        for outcome in outcomes:
            assert outcome.record.ticket not in self.fates, "a record has one fate"
            self.fates[outcome.record.ticket] = outcome

    def send(self) -> None:
        key = f"key-{self.random.randrange(6)}"
        data = bytes(self.random.randrange(80))
        record = outgoing(data, key, None, record_bytes=400, now_ms=self.now_ms)
        record.ticket = len(self.records)
        self.records.append(record)
        self.given[key].append(record.ticket)
        if self.settings_are_plain and self.random.random() < 0.05:
            self.poison.add(record.ticket)
        self.core.add(record)

    def pump(self) -> None:
        self.take(self.core.expire(self.now_ms))
        while (request := self.core.next_request(self.now_ms)) is not None:
            assert len(request.parcels) <= self.settings.request_records
            assert sum(parcel.size for parcel in request.parcels) <= self.settings.request_bytes
            assert all(parcel.size <= 400 for parcel in request.parcels)
            self.under_way.append(request)
        if self.core.wants_map and self.random.random() < 0.5:
            self.take(self.core.on_map(ShardMap(self.stream.open, self.stream.closed)))

    def answer(self) -> None:
        if not self.under_way:
            return
        request = self.under_way.pop(self.random.randrange(len(self.under_way)))
        tickets = {record.ticket for parcel in request.parcels for record in parcel.records}
        if tickets & self.poison:
            error = KinesisError("a record is not valid")
            self.take(self.core.on_refused(request, error, self.now_ms, because_of_one=True))
            return
        fate = 1.0 if self.stream.calm else self.random.random()
        if fate < 0.1:  # it never arrives
            self.take(self.core.on_lost(request, "no answer", self.now_ms, in_doubt=True))
            return
        results = [self.stream.put(parcel) for parcel in request.parcels]
        if fate < 0.2:  # its answer never arrives
            self.lost |= {record.ticket for parcel in request.parcels for record in parcel.records}
            self.take(self.core.on_lost(request, "no answer", self.now_ms, in_doubt=True))
            return
        self.take(self.core.on_results(request, results, self.now_ms))

    @property
    def goes_on(self) -> bool:
        """Return whether no work is left, or a request is in flight."""
        return self.core.idle or bool(self.under_way) or self.core.wants_map

    def run(self, steps: int) -> None:
        for _ in range(steps):
            match self.random.choice(["send", "send", "answer", "answer", "wait", "reshard"]):
                case "send":
                    self.send()
                case "answer":
                    self.answer()
                case "wait":
                    self.now_ms += self.random.choice([1, 20, 100])
                case _ if self.random.random() < 0.2 and self.stream.shards < 12:
                    self.stream.reshard()
            self.pump()
        self.stream.calm = True
        self.core.flushing = True
        for _ in range(20 * steps):
            if self.core.idle:
                break
            self.answer()
            deadline_ms = self.core.next_deadline_ms(self.now_ms)
            assert deadline_ms is not None or self.goes_on, "it is stuck"
            if deadline_ms is not None and not self.under_way:
                self.now_ms = max(self.now_ms, deadline_ms)
            self.pump()
        assert self.core.idle

    def check(self) -> None:
        assert set(self.fates) == set(range(len(self.records))), "each record has a fate"
        for key, sent in self.given.items():
            seen = self.stream.seen[key]
            firsts = list(dict.fromkeys(seen))
            assert firsts == sorted(firsts), "a later record of a key has overtaken another"
            written = {ticket for ticket in sent if self.fates[ticket].sent is not None}
            assert written <= set(seen), "a record that was acknowledged is lost"
            twice = {ticket for ticket in seen if seen.count(ticket) > 1}
            assert twice <= self.lost, "a record is written twice though no answer was lost"
            refused = {t for t in sent if str(self.fates[t].error) == "a record is not valid"}
            assert refused <= self.poison, "a record is given up for another's sake"
            doubtful = set(seen) - written
            assert all(self.fates[ticket].record.in_doubt for ticket in doubtful)


@pytest.mark.parametrize("aggregated", [False, True])
@given(seed=st.integers(0, 2**32))
@settings(max_examples=examples(60))
def test_records_of_a_key_stay_in_order_and_none_is_lost(*, aggregated: bool, seed: int) -> None:
    harness = Harness(seed, aggregated=aggregated)
    harness.run(150)
    harness.check()


def oracle() -> type:
    """The message of the Kinesis Producer Library, for Google's own protobuf."""
    file = descriptor_pb2.FileDescriptorProto(name="kpl.proto", syntax="proto2")
    tag = file.message_type.add(name="Tag")
    tag.field.add(name="key", number=1, type=9, label=2)
    tag.field.add(name="value", number=2, type=9, label=1)
    record = file.message_type.add(name="Record")
    record.field.add(name="partition_key_index", number=1, type=4, label=2)
    record.field.add(name="explicit_hash_key_index", number=2, type=4, label=1)
    record.field.add(name="data", number=3, type=12, label=2)
    record.field.add(name="tags", number=4, type=11, label=3, type_name=".Tag")
    whole = file.message_type.add(name="AggregatedRecord")
    whole.field.add(name="partition_key_table", number=1, type=9, label=3)
    whole.field.add(name="explicit_hash_key_table", number=2, type=9, label=3)
    whole.field.add(name="records", number=3, type=11, label=3, type_name=".Record")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    made: type = message_factory.GetMessageClass(pool.FindMessageTypeByName("AggregatedRecord"))
    return made


AGGREGATED = oracle()
USER_RECORDS = st.lists(
    st.tuples(
        st.sampled_from(["a", "ü", "k" * 200, "z"]),
        st.none() | st.integers(0, HASH_KEYS - 1).map(str),
        st.binary(max_size=300),
    ),
    max_size=200,
)


@given(USER_RECORDS)
@settings(max_examples=examples(40))
def test_protobuf_reads_our_aggregated_records(
    records: list[tuple[str, str | None, bytes]],
) -> None:
    whole = Aggregate(8_000)
    taken = [record for record in records if whole.add(*record)]
    data = whole.encode()
    assert len(data) == whole.size <= 8_000
    assert data.startswith(MAGIC)
    assert len(whole) == len(taken)
    message = AGGREGATED()
    message.ParseFromString(data[4:-16])
    assert [
        (
            message.partition_key_table[one.partition_key_index],
            message.explicit_hash_key_table[one.explicit_hash_key_index]
            if one.HasField("explicit_hash_key_index")
            else None,
            one.data,
        )
        for one in message.records
    ] == taken


@given(USER_RECORDS)
@settings(max_examples=examples(40))
def test_readers_split_aggregated_records(
    records: list[tuple[str, str | None, bytes]],
) -> None:
    whole = Aggregate(8_000)
    taken = [record for record in records if whole.add(*record)]
    apart = taken_apart(whole.encode()) or []
    assert [(one.partition_key, one.explicit_hash_key, bytes(one.data)) for one in apart] == taken


def test_a_record_that_is_too_large_is_refused_before_it_is_sent() -> None:
    with pytest.raises(KinesisError, match="401 bytes with its key"):
        outgoing(bytes(398), "key", None, record_bytes=400, now_ms=0)
    with pytest.raises(KinesisError, match="257 characters; 1 to 256 are allowed"):
        outgoing(b"", "k" * 257, None, record_bytes=400, now_ms=0)
    with pytest.raises(KinesisError, match="2\\*\\*128"):
        outgoing(b"", "k", str(2**128), record_bytes=400, now_ms=0)
