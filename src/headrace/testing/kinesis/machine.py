"""The fake of Kinesis without a socket: requests in, replies out. It has no thread, and uses the given clock."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from headrace.embedded.clock import Clock
from headrace.testing.kinesis import (
    consumers,
    control,
    fanout,
    listing,
    putting,
    reading,
    resharding,
)
from headrace.testing.kinesis.account import Account, ShardEnd, stream_name
from headrace.testing.kinesis.calls import Call
from headrace.testing.kinesis.errors import AwsError
from headrace.testing.kinesis.fanout import FanOutSubscription, Push
from headrace.testing.kinesis.faults import Reply
from headrace.testing.kinesis.limits import Limits
from headrace.testing.kinesis.service import AwsService, replied
from headrace.testing.kinesis.shard import Shard, StoredRecord
from headrace.testing.kinesis.stream import Stream
from headrace.testing.kinesis.validation import validate

Operation = Callable[[Account, Call], dict[str, object] | bytes | None]

OPERATIONS: Final[Mapping[str, Operation]] = {
    "CreateStream": control.create_stream,
    "DecreaseStreamRetentionPeriod": control.decrease_retention,
    "DeleteStream": control.delete_stream,
    "DeregisterStreamConsumer": consumers.deregister_consumer,
    "DescribeStream": control.describe_stream,
    "DescribeStreamConsumer": consumers.describe_consumer,
    "DescribeStreamSummary": control.describe_stream_summary,
    "GetRecords": reading.get_records,
    "GetShardIterator": reading.get_shard_iterator,
    "IncreaseStreamRetentionPeriod": control.increase_retention,
    "ListShards": listing.list_shards,
    "ListStreamConsumers": consumers.list_consumers,
    "ListStreams": control.list_streams,
    "MergeShards": resharding.merge_shards,
    "PutRecord": putting.put_record,
    "PutRecords": putting.put_records,
    "RegisterStreamConsumer": consumers.register_consumer,
    "SplitShard": resharding.split_shard,
    "StartStreamEncryption": control.start_encryption,
    "StopStreamEncryption": control.stop_encryption,
    "UpdateMaxRecordSize": control.update_max_record_size,
    "UpdateShardCount": resharding.update_shard_count,
    "UpdateStreamMode": control.update_stream_mode,
}


class Put(NamedTuple):
    """The place of a written record.

    Attributes:
        shard: The name of the shard.
        sequence_number: The sequence number of the record.
    """

    shard: str
    sequence_number: str


class FakeKinesis(AwsService):
    """Kinesis in memory: streams, shards, iterators, and the limits and refusals of AWS.

    Clients call `handle`. All other methods are for the test itself; limits per second do not apply to them.
    """

    def __init__(
        self,
        *,
        clock: Clock | None = None,
        limits: Limits | None = None,
        transition_ms: int = 0,
        shard_end: ShardEnd = "with_data",
        region: str = "us-east-1",
    ) -> None:
        """Create an account without streams.

        Args:
            clock: The clock; None is the process's clock, which `advance` moves ahead.
            limits: The limits; `Limits().unthrottled()` has no limits per second.
            transition_ms: The milliseconds for which a stream is CREATING, UPDATING or DELETING; 0: changes are done at
                once.
            shard_end: How reading a closed shard ends: NextShardIterator is missing in the reply with the last records
                ("with_data"), or in one more reply without records ("extra_call"). AWS does both.
            region: The region in ARNs.
        """
        super().__init__(clock)
        self.account = Account(
            region=region,
            limits=limits or Limits(),
            transition_ms=transition_ms,
            shard_end=shard_end,
        )

    def create_stream(self, name: str, shards: int = 1, **members: Any) -> str:
        """Create a stream; return its ARN."""
        self.call("CreateStream", StreamName=name, ShardCount=shards, **members)
        return self.account.arn(name)

    def put(
        self,
        stream: str,
        data: bytes,
        partition_key: str = "key",
        *,
        explicit_hash_key: int | None = None,
    ) -> Put:
        """Write a record to a stream."""
        chosen = {} if explicit_hash_key is None else {"ExplicitHashKey": str(explicit_hash_key)}
        reply = self.call(
            "PutRecord",
            StreamName=stream,
            Data=b64encode(data).decode(),
            PartitionKey=partition_key,
            **chosen,
        )
        return Put(reply["ShardId"], reply["SequenceNumber"])

    def records(self, stream: str, shard: str | None = None) -> list[StoredRecord]:
        """Return the records of a stream, or of one of its shards: shard by shard, in order."""
        with self.lock:
            found = self._stream(stream)
            shards = list(found.shards.values()) if shard is None else [found.shard(shard)]
            for each in shards:
                each.trim(found.horizon_ms(self.clock.now_ms()))
            return [record for each in shards for record in each.records()]

    def shards(self, stream: str, *, only_open: bool = False) -> list[Shard]:
        """Return a stream's shards: all by number, or the open ones by hash key."""
        with self.lock:
            found = self._stream(stream)
            return found.open_shards() if only_open else list(found.shards.values())

    def split(self, stream: str, shard: str, at: int | None = None) -> None:
        """Split a shard at a hash key, by default in the middle."""
        with self.lock:
            first, last = self._stream(stream).shard(shard).hash_range
            middle = str((first + last) // 2 + 1 if at is None else at)
            self.call(
                "SplitShard", StreamName=stream, ShardToSplit=shard, NewStartingHashKey=middle
            )

    def merge(self, stream: str, shard: str, adjacent: str) -> None:
        """Merge two adjacent shards."""
        self.call(
            "MergeShards", StreamName=stream, ShardToMerge=shard, AdjacentShardToMerge=adjacent
        )

    def reshard(self, stream: str, shards: int) -> None:
        """Change the number of shards, at most to the double and at least to the half."""
        self.call(
            "UpdateShardCount",
            StreamName=stream,
            TargetShardCount=shards,
            ScalingType="UNIFORM_SCALING",
        )

    def expire_iterators(self) -> None:
        """Expire all iterators and tokens of pages that were issued so far."""
        with self.lock:
            self.account.tokens.expire()

    def register_consumer(self, stream: str, name: str) -> str:
        """Register a consumer of fan-out; return its ARN."""
        reply = self.call(
            "RegisterStreamConsumer", StreamARN=self.account.arn(stream), ConsumerName=name
        )
        return str(reply["Consumer"]["ConsumerARN"])

    def end_subscriptions(self, kind: str | None = None) -> None:
        """End all subscriptions.

        Args:
            kind: The error type to push, such as `InternalFailureException`; None breaks the connections.
        """
        with self.lock:
            refusal = AwsError(kind, "A fault of the test.") if kind else None
            for consumer in self.account.consumers.values():
                for subscription in consumer.subscriptions.values():
                    subscription.end(refusal)
        self.changed()

    def next_push(self, subscription: FanOutSubscription) -> Push:
        """Return the next event of a subscription."""
        with self.lock:
            return subscription.next(self.account, self.clock.now_ms())

    def _stream(self, name: str) -> Stream:
        return self.account.named(name, self.clock.now_ms())

    def locate(self, call: Call) -> None:
        """Set the stream and the shard of a call."""
        call.stream = stream_name(call.request)
        if isinstance(arn := call.request.get("ConsumerARN"), str):
            call.stream = stream_name({"StreamARN": arn})
        if call.operation == "GetRecords":
            self._locate_iterator(call)
            return
        for member in ("ShardId", "ShardToSplit", "ShardToMerge"):
            if isinstance(shard := call.request.get(member), str):
                call.shard = shard
                return

    def _locate_iterator(self, call: Call) -> None:
        token = call.request.get("ShardIterator")
        try:
            place, *_ = self.account.tokens.peek_iterator(
                str(token), call.now_ms, self.account.limits
            )
        except AwsError:
            return
        call.stream, call.shard = place.stream, f"shardId-{place.shard:012d}"

    def perform(self, call: Call) -> Reply:
        """Execute a request within the limits."""
        validate(call.operation, call.request)
        self.account.admit(call)
        if call.operation == "SubscribeToShard":
            return Reply(200, subscription=fanout.subscribe(self.account, call))
        operation = OPERATIONS.get(call.operation)
        if operation is None:
            raise AwsError(
                "UnknownOperationException", f"the fake has no operation {call.operation!r}"
            )
        return replied(operation(self.account, call))

    def undisturbed(self, call: Call) -> Reply:
        """Execute a request of the test itself, without limits per second."""
        limits = self.account.limits
        self.account.limits = limits.unthrottled()
        try:
            return self.perform(call)
        finally:
            self.account.limits = limits

    def answer_empty(self, call: Call) -> Reply:
        """Reply to a GetRecords without records."""
        if call.operation != "GetRecords":
            return super().answer_empty(call)
        validate(call.operation, call.request)
        return replied(reading.nothing_yet(self.account, call))
