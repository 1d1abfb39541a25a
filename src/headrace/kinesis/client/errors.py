"""Classifies failures of AWS calls, and describes them in messages.

Nothing here imports botocore: its errors are known by their attributes and by the names of their classes, so a client
that was handed in may be a fake that raises look-alikes.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

from headrace.errors import ConfigError, HeadraceError, KinesisError, StreamNotFoundError


class FailureKind(Enum):
    """The kind of a failure, which decides what to do about it."""

    THROTTLED = "throttled"
    """Too much was asked for: wait, then repeat."""
    REPEAT = "repeat"
    """The server or the way to it failed: wait, then repeat. What was asked for may have happened."""
    EXPIRED = "expired"
    """An iterator or a token of a list is too old: begin again with a new one."""
    MISSING = "missing"
    """There is no such stream, shard, consumer or table."""
    IN_USE = "in use"
    """Something else is going on with it: wait, then repeat."""
    FATAL = "fatal"
    """Repeating it does not help."""


_VERDICTS: Final = {
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

# Bases of what botocore, aiohttp and the standard library raise when no answer came.
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
        "AWS_SECRET_ACCESS_KEY, or a profile, or run where a role gives them"
    ),
    "PartialCredentialsError": "the AWS credentials are not complete: {}",
    "CredentialRetrievalError": "AWS credentials cannot be had: {}",
    "MetadataRetrievalError": "AWS credentials cannot be had: {}",
    "TokenRetrievalError": "{}: log in again, as with `aws sso login`",
    "SSOError": "{}: log in again, as with `aws sso login`",
    "NoRegionError": "no AWS region is set: set region, AWS_REGION, or a profile that has one",
    "InvalidRegionError": "{}: a region is a name as eu-central-1",
    "ProfileNotFound": "{}: profiles are in ~/.aws/config and ~/.aws/credentials",
    "ResponseParserError": "what answers there is no AWS service: check endpoint_url",
    "ParamValidationError": "{}",
}


_OF_AWS: Final = frozenset({"BotoCoreError", "HeadraceError", *_NO_ANSWER})


def of_aws(error: BaseException) -> bool:
    """Whether it is a failure of a call of AWS, not a fault in a program."""
    return isinstance(getattr(error, "response", None), dict) or any(
        base.__name__ in _OF_AWS for base in type(error).__mro__
    )


def is_silence(error: BaseException) -> bool:
    """Whether there was no answer, or none that is one of AWS."""
    names = {base.__name__ for base in type(error).__mro__}
    return not error_code(error) and bool(names & _NO_ANSWER) and not names & _TRANSIENT


def error_code(error: BaseException) -> str:
    """Return what AWS calls the failure, as `ResourceNotFoundException`; empty if AWS did not answer."""
    response = getattr(error, "response", None)
    if not isinstance(response, dict):
        return ""
    code = str(response.get("Error", {}).get("Code", ""))
    return code.rpartition("#")[2]


def status_code(error: BaseException) -> int:
    """Return the HTTP status of the answer; 0 if there was none."""
    response = getattr(error, "response", None)
    if not isinstance(response, dict):
        return 0
    return int(response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))


def failure_kind(error: BaseException) -> FailureKind:
    """Return what to do about a failure of a call."""
    code = error_code(error)
    if code:
        known = _VERDICTS.get(code)
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
    """Return a failure as an error of ours: what was being done, what went wrong, what to do.

    Args:
        error: What the client raised.
        doing: As `reading shard shardId-000000000001 of orders`.
        stream: Which stream it is about, if a missing resource can only be that.
        region: Where it was looked for.
        endpoint: The server that was asked.
    """
    if isinstance(error, HeadraceError):
        return error
    code, said = error_code(error), _message(error)
    if code == "ResourceNotFoundException" and stream:
        where = f" in {region}" if region else ""
        return StreamNotFoundError(
            f"{doing}: there is no stream {stream!r}{where}: create it, or check region, endpoint_url and whose "
            f"credentials these are ({said})"
        )
    setting = _wrong_setting(error, code, said)
    if setting:
        return ConfigError(f"{doing}: {setting}")
    if failure_kind(error) is FailureKind.REPEAT and not code:
        asked = f" from {endpoint}" if endpoint else ""
        where = f" in region {region}" if region else ""
        return KinesisError(
            f"{doing}: no answer{asked}{where}: check region, endpoint_url and the network ({said})"
        )
    return KinesisError(f"{doing}: {_refusal(error, code, said)}")


def _wrong_setting(error: BaseException, code: str, said: str) -> str:
    for base in type(error).__mro__:
        if base.__name__ in _CONFIGURATION:
            return _CONFIGURATION[base.__name__].format(said)
    if code in _REMEDIES:
        return f"{_REMEDIES[code]} ({code}: {said})"
    if code.isdecimal():
        return f"what answers there is no AWS service: check endpoint_url (HTTP {code}: {said})"
    return ""


_ADVICE: Final = {
    FailureKind.THROTTLED: "more was asked for than AWS allows: ask less often, add shards, or have the limit raised",
    FailureKind.REPEAT: "AWS fails: try again later",
    FailureKind.IN_USE: "it is being changed: try again later",
}
"""The advice for a failure that was repeated for too long, by kind."""


def _refusal(error: BaseException, code: str, said: str) -> str:
    if code.startswith("AccessDenied"):
        return f"the credentials do not allow it: give their user or role the permission ({said})"
    if code.startswith("KMS"):
        return f"the key that encrypts the stream cannot be used: check its policy and state ({code}: {said})"
    text = f"{code}: {said}" if code else said
    advice = _ADVICE.get(failure_kind(error))
    return f"{text} ({advice})" if advice else text


def _message(error: BaseException) -> str:
    response = getattr(error, "response", None)
    if isinstance(response, dict):
        said = response.get("Error", {}).get("Message") or response.get("message")
        if said:
            return str(said)
    return str(error) or type(error).__name__
