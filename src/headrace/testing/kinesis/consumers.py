"""The operations on consumers of enhanced fan-out: register, describe, list and deregister."""

from __future__ import annotations

from typing import Final

from headrace.testing.kinesis.account import Account
from headrace.testing.kinesis.calls import Call
from headrace.testing.kinesis.errors import AwsError, in_use, invalid, not_found
from headrace.testing.kinesis.registered_consumer import RegisteredConsumer
from headrace.testing.kinesis.stream import ACCOUNT, Stream
from headrace.testing.kinesis.tokens import Page

_MOST: Final = 20
_DEFAULT_PAGE: Final = 100


def register_consumer(account: Account, call: Call) -> dict[str, object]:
    """Handle RegisterStreamConsumer: register a consumer."""
    stream = account.usable(call)
    name = call.request["ConsumerName"]
    others = _of_stream(account, stream)
    if any(each.name == name for each in others):
        raise in_use(
            f"Consumer {name} under stream {stream.name} already exists for account {ACCOUNT}."
        )
    if len(others) >= _MOST:
        raise AwsError(
            "LimitExceededException",
            f"Stream {stream.name} under account {ACCOUNT} has {_MOST} consumers registered "
            "already.",
        )
    arn = f"{stream.arn}/consumer/{name}:{call.now_ms // 1000}"
    consumer = RegisteredConsumer(
        name, arn, stream, call.now_ms, call.now_ms + account.transition_ms
    )
    account.consumers[arn] = consumer
    return {"Consumer": consumer.described(call.now_ms)}


def describe_consumer(account: Account, call: Call) -> dict[str, object]:
    """Handle DescribeStreamConsumer: describe a consumer."""
    consumer = _wanted(account, call)
    reply = consumer.described(call.now_ms) | {"StreamARN": consumer.stream.arn}
    return {"ConsumerDescription": reply}


def deregister_consumer(account: Account, call: Call) -> None:
    """Handle DeregisterStreamConsumer: remove a consumer, which ends its subscriptions."""
    del account.consumers[_wanted(account, call).arn]


def list_consumers(account: Account, call: Call) -> dict[str, object]:
    """Handle ListStreamConsumers: list a stream's consumers by name."""
    token = call.request.get("NextToken")
    after = account.tokens.read_page(token, call.now_ms, account.limits).after if token else ""
    stream = account.stream(call)
    limit = call.request.get("MaxResults", _DEFAULT_PAGE)
    rest = sorted(
        (each for each in _of_stream(account, stream) if each.name > after),
        key=lambda each: each.name,
    )
    reply: dict[str, object] = {"Consumers": [each.described(call.now_ms) for each in rest[:limit]]}
    if len(rest) > limit:
        page = Page(stream.name, rest[limit - 1].name, "")
        reply["NextToken"] = account.tokens.write_page(page, call.now_ms)
    return reply


def consumer_of(account: Account, arn: str) -> RegisteredConsumer:
    """Return a consumer by its ARN."""
    found = account.consumers.get(arn)
    if found is None:
        raise not_found(f"Consumer {arn} under account {ACCOUNT} not found.")
    return found


def _of_stream(account: Account, stream: Stream) -> list[RegisteredConsumer]:
    return [each for each in account.consumers.values() if each.stream is stream]


def _wanted(account: Account, call: Call) -> RegisteredConsumer:
    """Return the consumer that a request names: by its ARN, or by the stream and its name."""
    arn, name = call.request.get("ConsumerARN"), call.request.get("ConsumerName")
    if arn is not None:
        return consumer_of(account, arn)
    if name is None or call.stream is None:
        raise invalid("Either ConsumerARN, or StreamARN and ConsumerName must be specified.")
    stream = account.stream(call)
    for each in _of_stream(account, stream):
        if each.name == name:
            return each
    raise not_found(f"Consumer {name} under stream {stream.name} not found for account {ACCOUNT}.")
