"""Failures of AWS calls: which calls are repeated, and the messages for users."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import aiohttp
import botocore.exceptions as boto
import pytest

from headrace.errors import ConfigError, KinesisError, StreamNotFoundError
from headrace.kinesis.client.backoff import JitteredBackoff, repeated
from headrace.kinesis.client.errors import FailureKind, error_code, explained, failure_kind, of_aws


def refusal(code: str, message: str = "the reason", status: int = 400) -> boto.ClientError:
    response: Any = {
        "Error": {"Code": code, "Message": message},
        "ResponseMetadata": {"HTTPStatusCode": status},
    }
    return boto.ClientError(response, "GetRecords")


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (refusal("ProvisionedThroughputExceededException"), FailureKind.THROTTLED),
        (refusal("LimitExceededException"), FailureKind.THROTTLED),
        (refusal("KMSThrottlingException"), FailureKind.THROTTLED),
        (refusal("ThrottlingException"), FailureKind.THROTTLED),
        (refusal("InternalFailure", status=500), FailureKind.REPEAT),
        (refusal("SomethingNew", status=503), FailureKind.REPEAT),
        (refusal("502", "Bad Gateway", status=502), FailureKind.REPEAT),
        (refusal("SomethingNew"), FailureKind.FATAL),
        (refusal("ExpiredIteratorException"), FailureKind.EXPIRED),
        (refusal("ExpiredNextTokenException"), FailureKind.EXPIRED),
        (refusal("com.amazonaws.kinesis.v20131202#ResourceNotFoundException"), FailureKind.MISSING),
        (refusal("ResourceInUseException"), FailureKind.IN_USE),
        (refusal("AccessDeniedException"), FailureKind.FATAL),
        (refusal("KMSAccessDeniedException"), FailureKind.FATAL),
        (boto.EndpointConnectionError(endpoint_url="http://x"), FailureKind.REPEAT),
        (boto.ReadTimeoutError(endpoint_url="http://x"), FailureKind.REPEAT),
        (boto.ConnectionClosedError(endpoint_url="http://x"), FailureKind.REPEAT),
        (aiohttp.ClientPayloadError(), FailureKind.REPEAT),
        (aiohttp.ServerDisconnectedError(), FailureKind.REPEAT),
        (ConnectionResetError(), FailureKind.REPEAT),
        (TimeoutError(), FailureKind.REPEAT),
        (boto.NoCredentialsError(), FailureKind.FATAL),
        (boto.CredentialRetrievalError(provider="iam-role", error_msg="busy"), FailureKind.REPEAT),
        (boto.MetadataRetrievalError(error_msg="busy"), FailureKind.REPEAT),
        (boto.UnauthorizedSSOTokenError(), FailureKind.FATAL),
        (boto.ParamValidationError(report="no"), FailureKind.FATAL),
    ],
    ids=repr,
)
def test_every_failure_has_its_kind(error: Exception, expected: FailureKind) -> None:
    assert of_aws(error)
    assert failure_kind(error) is expected


@pytest.mark.parametrize("error", [TypeError("x"), KeyError("x"), AssertionError()])
def test_a_bug_of_a_program_is_not_a_failure_of_aws(error: Exception) -> None:
    assert not of_aws(error)


@pytest.mark.parametrize(
    ("error", "kind", "message"),
    [
        (
            boto.NoCredentialsError(),
            ConfigError,
            "set access_key_id and secret_access_key, AWS_ACCESS_KEY_ID and",
        ),
        (boto.MetadataRetrievalError(error_msg="busy"), ConfigError, "credentials cannot be read"),
        (boto.UnauthorizedSSOTokenError(), ConfigError, "log in again"),
        (boto.NoRegionError(), ConfigError, "set region, AWS_REGION, or a profile"),
        (
            boto.ProfileNotFound(profile="x"),
            ConfigError,
            "(x) could not be found: profiles are in ~/.aws/config",
        ),
        (
            boto.PartialCredentialsError(provider="env", cred_var="AWS_X"),
            ConfigError,
            "missing: AWS_X",
        ),
        (
            boto.EndpointConnectionError(endpoint_url="http://x"),
            KinesisError,
            "check region, endpoint_url and the network",
        ),
        (
            refusal("UnrecognizedClientException"),
            ConfigError,
            "check the access key and the region (Unrec",
        ),
        (refusal("ExpiredTokenException"), ConfigError, "expired: get new ones"),
        (refusal("InvalidSignatureException"), ConfigError, "this machine's clock is wrong"),
        (
            refusal("404", "Not Found", status=404),
            ConfigError,
            "the server is not an AWS service: check endpoint_url",
        ),
        (refusal("UnknownOperationException"), ConfigError, "check endpoint_url"),
        (
            refusal("AccessDeniedException", "no kinesis:GetRecords"),
            KinesisError,
            "role of the credentials (no kinesis:GetRecords)",
        ),
        (
            refusal("KMSDisabledException"),
            KinesisError,
            "check its policy and state (KMSDisabledException: the reason)",
        ),
        (
            refusal("ResourceNotFoundException"),
            StreamNotFoundError,
            "there is no stream 'orders' in eu-central-1: create it, or",
        ),
        (refusal("SomethingNew", "{odd}"), KinesisError, "SomethingNew: {odd}"),
        (
            refusal("LimitExceededException", "slow"),
            KinesisError,
            "slow (a limit of AWS was exceeded",
        ),
        (refusal("InternalFailure", "oh", status=500), KinesisError, "oh (AWS fails: retry"),
    ],
    ids=repr,
)
def test_messages_contain_the_action_the_reason_and_the_remedy(
    error: Exception, kind: type[Exception], message: str
) -> None:
    explanation = explained(error, "reading it", stream="orders", region="eu-central-1")
    assert type(explanation) is kind
    assert str(explanation).startswith("reading it: ")
    assert message in str(explanation)
    assert explained(explanation, "again") is explanation


def test_the_error_code_of_any_answer_is_read_without_an_exception() -> None:
    responses: list[Any] = [None, {}, {"Error": {}}, "text"]
    for response in responses:
        error = RuntimeError()
        error.response = response  # type: ignore[attr-defined] # as a look-alike may have it
        assert error_code(error) == ""


class Instant:
    """A clock that moves only during sleeps."""

    def __init__(self) -> None:
        self.time_ms = 0.0

    def now_ms(self) -> int:
        return int(self.time_ms)

    def random(self) -> float:
        return 1.0

    async def sleep_ms(self, duration_ms: float) -> None:
        self.time_ms += duration_ms


def test_calls_are_repeated_until_their_time_limit() -> None:
    timing = Instant()
    attempts = 0

    async def call() -> None:
        nonlocal attempts
        attempts += 1
        raise refusal("LimitExceededException")

    client: Any = object()
    with pytest.raises(KinesisError, match="listing: LimitExceededException"):
        asyncio.run(repeated(call, "listing", client, timing))
    # After 0.2, 0.4, 0.8, 1.6, 3.2, 6.4 and 10 seconds; with ten more it would be 32.
    assert attempts == 8
    assert timing.time_ms == 22_600


def test_pauses_grow_and_are_random() -> None:
    chance = iter([1.0, 0.0, 0.5, 1.0])
    backoff = JitteredBackoff(lambda: next(chance), first_ms=100, most_ms=300)
    assert [backoff.next_ms() for _ in range(3)] == [100, 0, 150]
    backoff.reset()
    assert backoff.next_ms() == 100


@pytest.mark.parametrize(
    ("error", "most_ms"),
    [
        (boto.EndpointConnectionError(endpoint_url="http://x"), 3_000),
        (boto.ConnectTimeoutError(endpoint_url="http://x"), 3_000),
        (boto.HTTPClientError(error="Bad status line"), 3_000),
        (boto.MetadataRetrievalError(error_msg="busy"), 30_000),
        (refusal("InternalFailure", status=500), 30_000),
    ],
    ids=repr,
)
def test_calls_to_a_server_that_never_answered_fail_early(error: Exception, most_ms: int) -> None:
    timing = Instant()

    async def call() -> None:
        raise error

    client: Any = SimpleNamespace(
        meta=SimpleNamespace(region_name="eu-central-1", endpoint_url="http://x")
    )
    with pytest.raises((KinesisError, ConfigError)) as raised:
        asyncio.run(repeated(call, "describing it", client, timing, answer_within_ms=3_000))
    assert most_ms / 4 < timing.time_ms <= most_ms
    if most_ms == 3_000:
        expected = "describing it: no answer from http://x in region eu-central-1: check region,"
        assert str(raised.value).startswith(expected)
