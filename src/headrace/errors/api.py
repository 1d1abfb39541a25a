"""Exceptions that carry a Kafka error code."""

from __future__ import annotations

from typing import ClassVar

from headrace.errors.base import HeadraceError
from headrace.errors.codes import ErrorCode


class ApiError(HeadraceError):
    """A failure that has a Kafka error code.

    Attributes:
        code: The error code; never NONE.
        message: What is wrong in this case; by default the description of the code.
    """

    code: ErrorCode
    message: str

    def __init__(self, code: int, message: str = "") -> None:
        self.code = ErrorCode(code)
        self.message = message or self.code.description
        super().__init__(self.code, self.message)

    def __str__(self) -> str:
        return f"{self.code.name}: {self.message}"

    def __reduce__(self) -> tuple[object, ...]:
        # Between processes, as from Spark's Python workers, the error keeps the class that belongs to its code.
        return ApiError.for_code, (int(self.code), self.message)

    @property
    def retriable(self) -> bool:
        """Whether the same request may succeed later."""
        return self.code.retriable

    @staticmethod
    def for_code(code: int, message: str = "") -> ApiError:
        """Return the error of the subclass that is registered for `code`, or a plain ApiError."""
        subclass = _SUBCLASSES.get(code)
        return subclass(message) if subclass is not None else ApiError(code, message)


_SUBCLASSES: dict[int, type[_RegisteredApiError]] = {}


class _RegisteredApiError(ApiError):
    """An ApiError whose class fixes its code: `TopicAlreadyExistsError("flights exists")`."""

    CODE: ClassVar[ErrorCode]

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        _SUBCLASSES.setdefault(cls.CODE, cls)

    def __init__(self, message: str = "") -> None:
        super().__init__(self.CODE, message)


class OffsetOutOfRangeError(_RegisteredApiError):
    """The offset lies before the log start or after the log end."""

    CODE = ErrorCode.OFFSET_OUT_OF_RANGE


class CorruptMessageError(_RegisteredApiError):
    """The broker found a batch's checksum, size or layout wrong."""

    CODE = ErrorCode.CORRUPT_MESSAGE


class UnknownTopicOrPartitionError(_RegisteredApiError):
    """The broker has no such topic or partition."""

    CODE = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


class NotLeaderOrFollowerError(_RegisteredApiError):
    """Another broker leads the partition."""

    CODE = ErrorCode.NOT_LEADER_OR_FOLLOWER


class RequestTimedOutError(_RegisteredApiError):
    """The broker did not complete the request in time."""

    CODE = ErrorCode.REQUEST_TIMED_OUT


class MessageTooLargeError(_RegisteredApiError):
    """The batch is larger than the topic or broker accepts."""

    CODE = ErrorCode.MESSAGE_TOO_LARGE


class CoordinatorNotAvailableError(_RegisteredApiError):
    """The group or transaction has no coordinator at the moment."""

    CODE = ErrorCode.COORDINATOR_NOT_AVAILABLE


class NotCoordinatorError(_RegisteredApiError):
    """Another broker coordinates this group or transaction."""

    CODE = ErrorCode.NOT_COORDINATOR


class InvalidTopicError(_RegisteredApiError):
    """The topic name is not allowed."""

    CODE = ErrorCode.INVALID_TOPIC_EXCEPTION


class IllegalGenerationError(_RegisteredApiError):
    """The generation is not the group's current one."""

    CODE = ErrorCode.ILLEGAL_GENERATION


class UnknownMemberIdError(_RegisteredApiError):
    """The group has no such member."""

    CODE = ErrorCode.UNKNOWN_MEMBER_ID


class RebalanceInProgressError(_RegisteredApiError):
    """The group is rebalancing. The member must join again."""

    CODE = ErrorCode.REBALANCE_IN_PROGRESS


class AuthenticationError(_RegisteredApiError):
    """The broker rejected the client's credentials, or the client rejected the broker's.

    Clients do not retry after it, because the same credentials would fail again: the call fails at once.
    """

    CODE = ErrorCode.SASL_AUTHENTICATION_FAILED

    def __str__(self) -> str:
        return self.message


class UnsupportedVersionError(_RegisteredApiError):
    """The other side does not support a version of the API that the operation needs."""

    CODE = ErrorCode.UNSUPPORTED_VERSION


class TopicAlreadyExistsError(_RegisteredApiError):
    """A topic with this name exists already."""

    CODE = ErrorCode.TOPIC_ALREADY_EXISTS


class InvalidConfigError(_RegisteredApiError):
    """The broker refused a configuration value."""

    CODE = ErrorCode.INVALID_CONFIG


class InvalidRequestError(_RegisteredApiError):
    """The request contradicts itself or the protocol."""

    CODE = ErrorCode.INVALID_REQUEST


class OutOfOrderSequenceError(_RegisteredApiError):
    """The producer's sequence has a gap."""

    CODE = ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


class InvalidProducerEpochError(_RegisteredApiError):
    """The producer's epoch is older than the one on record."""

    CODE = ErrorCode.INVALID_PRODUCER_EPOCH


class StorageUnavailableError(_RegisteredApiError):
    """The broker cannot read or write its log directory."""

    CODE = ErrorCode.KAFKA_STORAGE_ERROR


class MemberIdRequiredError(_RegisteredApiError):
    """The member must join again with the member id in the response."""

    CODE = ErrorCode.MEMBER_ID_REQUIRED


class FencedInstanceIdError(_RegisteredApiError):
    """Another member has taken over the group instance id."""

    CODE = ErrorCode.FENCED_INSTANCE_ID


class GroupIdNotFoundError(_RegisteredApiError):
    """The broker has no such group."""

    CODE = ErrorCode.GROUP_ID_NOT_FOUND


class InvalidRecordError(_RegisteredApiError):
    """A record violates a rule of the topic or of the batch format."""

    CODE = ErrorCode.INVALID_RECORD


class UnknownTopicIdError(_RegisteredApiError):
    """The broker has no topic with this id."""

    CODE = ErrorCode.UNKNOWN_TOPIC_ID
