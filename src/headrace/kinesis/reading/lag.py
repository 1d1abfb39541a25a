"""The lag of a group in a shard, for tools that are not members of the group."""

from __future__ import annotations

from typing import Any

from headrace.core.lease.checkpoint import Checkpoint
from headrace.errors import KinesisError
from headrace.kinesis.client.backoff import RealTiming, repeated
from headrace.kinesis.client.errors import error_code
from headrace.kinesis.client.settings import AwsClient
from headrace.kinesis.client.streams import stream_arguments
from headrace.kinesis.reading.positions import iterator_arguments

_UNKNOWN = frozenset({"ResourceNotFoundException", "InvalidArgumentException"})


async def lag_ms(
    client: AwsClient, stream: str, shard: str, checkpoint: Checkpoint, now_ms: int
) -> int | None:
    """Return how long the oldest unfinished record has waited, in milliseconds; 0 if there is none.

    The call costs one of the five reads per second that a shard allows.

    Args:
        client: The client of Kinesis.
        stream: Name or ARN of the stream.
        shard: The id of the shard.
        checkpoint: The group's checkpoint in the shard.
        now_ms: The time in milliseconds since 1970.

    Returns:
        The lag. None if it is unknown: the shard does not exist any more, or the checkpoint does not belong to it.

    Raises:
        KinesisError: Reading is not permitted, or Kinesis does not answer.
    """
    if checkpoint.is_end:
        return 0

    async def read() -> dict[str, Any]:
        place = {**stream_arguments(stream), "ShardId": shard, **iterator_arguments(checkpoint)}
        iterator = (await client.get_shard_iterator(**place))["ShardIterator"]
        answer: dict[str, Any] = await client.get_records(ShardIterator=iterator, Limit=1)
        return answer

    try:
        answer = await repeated(read, f"reading {shard} of stream {stream}", client, RealTiming())
    except KinesisError as error:
        if error.__cause__ is not None and error_code(error.__cause__) in _UNKNOWN:
            return None
        raise
    behind_ms = int(answer.get("MillisBehindLatest", 0))
    if not answer["Records"]:
        return behind_ms
    arrived_ms: int = round(answer["Records"][0]["ApproximateArrivalTimestamp"].timestamp() * 1000)
    return max(behind_ms, now_ms - arrived_ms)
