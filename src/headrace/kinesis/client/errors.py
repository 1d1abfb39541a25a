"""Classifies failures of AWS calls, and describes them in messages.

This module does not import botocore. It recognizes botocore's errors by their attributes and by the names of their
classes, so a program may pass a fake client that raises similar errors.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

from headrace.errors import ConfigError, HeadraceError, KinesisError, StreamNotFoundError


class FailureKind(Enum):
    """The kind of a failure, which decides what to do about it."""

    THROTTLED = "throttled"
    """A limit of AWS was exceeded: pause, then retry."""
    REPEAT = "repeat"
    """The server or the connection failed: pause, then retry. The call may have been executed."""
    EXPIRED = "expired"
    """An iterator or a list token is too old: start again with a new one."""
    MISSING = "missing"
    """The stream, shard, consumer or table does not exist."""
    IN_USE = "in use"
    """The resource is being changed: pause, then retry."""
    FATAL = "fatal"
    """A retry does not help."""


_KINDS: Final = {
    code: kind
    for kind, codes in {
        FailureKind.THROTTLED: (
            "ProvisionedThroughputExceededException LimitExceededException KMSThrottlingException ThrottlingException "
            "Throttling ThrottledException RequestThrottled RequestThrottledException RequestLimitExceeded "
            "TooManyRequestsException BandwidthLimitExceeded SlowDown"
        ),
        FailureKind.REPEAT: (
            "InternalFailureException InternalFailure InternalServerError InternalError ServiceUnavailable "
            "ServiceUnavailableException RequestTimeout RequestTimeoutException TransactionInProgressException"
        ),
        FailureKind.EXPIRED: "ExpiredIteratorException ExpiredNextTokenException",
        FailureKind.MISSING: "ResourceNotFoundException",
        FailureKind.IN_USE: "ResourceInUseException",
    }.items()
    for code in codes.split()
}

# Base classes of the errors of botocore, aiohttp and the standard library for a missing answer.
_NO_ANSWER: Final = frozenset(
    {"HTTPClientError", "ConnectionError", "ClientError", "ParserError", "OSError", "TimeoutError"}
)

# Temporary credentials could not be renewed now. If no attempt ever succeeded, an error follows after a time limit.
_TRANSIENT: Final = frozenset({"CredentialRetrievalError", "MetadataRetrievalError"})

_REMEDIES: Final = {
    "UnrecognizedClientException": "AWS does not know these credentials: check the access key and the region",
    "InvalidClientTokenId": "AWS does not know these credentials: check the access key and the region",
    "InvalidSignatureException": "the secret key is not this access key's, or this machine's clock is wrong",
    "SignatureDoesNotMatch": "the secret key is not this access key's, or this machine's clock is wrong",
    "IncompleteSignatureException": "the credentials are damaged: check access key and secret",
    "MissingAuthenticationTokenException": "the request carried no credentials: check access key and secret",
    "MissingAuthenticationToken": "the request carried no credentials: check access key and secret",
    "RequestExpired": "this machine's clock is wrong",
    "RequestTimeTooSkewed": "this machine's clock is wrong",
    "ExpiredTokenException": "the temporary credentials have expired: get new ones",
    "ExpiredToken": "the temporary credentials have expired: get new ones",
    "OptInRequired": "the account is not signed up for this service or region",
    "UnknownOperationException": "the server does not know this operation: check endpoint_url",
}

_CONFIGURATION: Final = {
    "NoCredentialsError": (
        "there are no AWS credentials: set access_key_id and secret_access_key, AWS_ACCESS_KEY_ID and "
        "AWS_SECRET_ACCESS_KEY, or a profile, or run on a machine with a role"
    ),
    "PartialCredentialsError": "the AWS credentials are not complete: {}",
    "CredentialRetrievalError": "the AWS credentials cannot be read: {}",
    "MetadataRetrievalError": "the AWS credentials cannot be read: {}",
    "TokenRetrievalError": "{}: log in again, for example with `aws sso login`",
    "SSOError": "{}: log in again, for example with `aws sso login`",
    "NoRegionError": "no AWS region is set: set region, AWS_REGION, or a profile that has one",
    "InvalidRegionError": "{}: a region has a name such as eu-central-1",
    "ProfileNotFound": "{}: profiles are in ~/.aws/config and ~/.aws/credentials",
    "ResponseParserError": "the server is not an AWS service: check endpoint_url",
    "ParamValidationError": "{}",
}


_OF_AWS: Final = frozenset({"BotoCoreError", "HeadraceError", *_NO_ANSWER})


def of_aws(error: BaseException) -> bool:
    """Whether an error is a failure of an AWS call, not a bug in a program."""
    return isinstance(getattr(error, "response", None), dict) or any(
        base.__name__ in _OF_AWS for base in type(error).__mro__
    )


def is_silence(error: BaseException) -> bool:
    """Whether there was no response, or a response that is not of AWS."""
    names = {base.__name__ for base in type(error).__mro__}
    return not error_code(error) and bool(names & _NO_ANSWER) and not names & _TRANSIENT


def error_code(error: BaseException) -> str:
    """Return the error code of AWS, such as `ResourceNotFoundException`; empty if AWS did not answer."""
    response = getattr(error, "response", None)
    if not isinstance(response, dict):
        return ""
    code = str(response.get("Error", {}).get("Code", ""))
    return code.rpartition("#")[2]


def status_code(error: BaseException) -> int:
    """Return the HTTP status of the response, or 0 if there was none."""
    response = getattr(error, "response", None)
    if not isinstance(response, dict):
        return 0
    return int(response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))


def failure_kind(error: BaseException) -> FailureKind:
    """Return the kind of a failed call."""
    code = error_code(error)
    if code:
        known = _KINDS.get(code)
        if known is not None:
            return known
        return FailureKind.REPEAT if status_code(error) >= 500 else FailureKind.FATAL
    names = {base.__name__ for base in type(error).__mro__}
    if names & _TRANSIENT:
        return FailureKind.REPEAT
    if names & _CONFIGURATION.keys():
        return FailureKind.FATAL
    return FailureKind.REPEAT if names & _NO_ANSWER else FailureKind.FATAL


def explained(
    error: BaseException, doing: str, *, stream: str = "", region: str = "", endpoint: str = ""
) -> HeadraceError:
    """Return a failure as an error of Headrace that says what was being done, what failed, and what to do.

    Args:
        error: The error of the client.
        doing: What the call does, such as `reading shard shardId-000000000001 of orders`.
        stream: The stream of the call, if a missing resource can only be this stream.
        region: The region of the client.
        endpoint: The server of the client.
    """
    if isinstance(error, HeadraceError):
        return error
    code, text = error_code(error), _message(error)
    if code == "ResourceNotFoundException" and stream:
        where = f" in {region}" if region else ""
        return StreamNotFoundError(
            f"{doing}: there is no stream {stream!r}{where}: create it, or check region, endpoint_url and the account "
            f"of the credentials ({text})"
        )
    setting = _wrong_setting(error, code, text)
    if setting:
        return ConfigError(f"{doing}: {setting}")
    if failure_kind(error) is FailureKind.REPEAT and not code:
        asked = f" from {endpoint}" if endpoint else ""
        where = f" in region {region}" if region else ""
        return KinesisError(
            f"{doing}: no answer{asked}{where}: check region, endpoint_url and the network ({text})"
        )
    return KinesisError(f"{doing}: {_refusal(error, code, text)}")


def _wrong_setting(error: BaseException, code: str, text: str) -> str:
    for base in type(error).__mro__:
        if base.__name__ in _CONFIGURATION:
            return _CONFIGURATION[base.__name__].format(text)
    if code in _REMEDIES:
        return f"{_REMEDIES[code]} ({code}: {text})"
    if code.isdecimal():
        return f"the server is not an AWS service: check endpoint_url (HTTP {code}: {text})"
    return ""


_ADVICE: Final = {
    FailureKind.THROTTLED: "a limit of AWS was exceeded: call less often, add shards, or have the limit raised",
    FailureKind.REPEAT: "AWS fails: retry later",
    FailureKind.IN_USE: "the resource is being changed: retry later",
}
"""The advice for a failure after the last retry, by kind."""


def _refusal(error: BaseException, code: str, text: str) -> str:
    if code.startswith("AccessDenied"):
        return f"access is denied: grant the permission to the user or role of the credentials ({text})"
    if code.startswith("KMS"):
        return f"the key that encrypts the stream cannot be used: check its policy and state ({code}: {text})"
    text = f"{code}: {text}" if code else text
    advice = _ADVICE.get(failure_kind(error))
    return f"{text} ({advice})" if advice else text


def _message(error: BaseException) -> str:
    response = getattr(error, "response", None)
    if isinstance(response, dict):
        text = response.get("Error", {}).get("Message") or response.get("message")
        if text:
            return str(text)
    return str(error) or type(error).__name__
