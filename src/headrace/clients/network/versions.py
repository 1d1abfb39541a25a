"""The version of each API that clients use: the newest that both sides support, limited by a table."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from headrace.errors import ApiError, ErrorCode
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.codec import Message
from headrace.protocol.messages.fetch import FetchRequest
from headrace.protocol.messages.list_offsets import ListOffsetsRequest
from headrace.protocol.versions import VersionRange

CLIENT_MAX_VERSIONS: Final[dict[int, int]] = {
    ApiKey.FETCH: 17,
    ApiKey.LIST_OFFSETS: 9,
    ApiKey.METADATA: 12,
    # OffsetCommit 10 and OffsetFetch 10 name topics by id only; the flows use names.
    ApiKey.OFFSET_COMMIT: 9,
    ApiKey.OFFSET_FETCH: 9,
    ApiKey.FIND_COORDINATOR: 4,
    ApiKey.INIT_PRODUCER_ID: 5,
    # Versions from 4 on are for brokers only.
    ApiKey.ADD_PARTITIONS_TO_TXN: 3,
    ApiKey.API_VERSIONS: 3,
    ApiKey.DESCRIBE_GROUPS: 5,
    ApiKey.DESCRIBE_CLUSTER: 1,
}
"""The newest version that clients use of an API, where newer versions change the meaning of a request."""


FILTER_EXTENSION: Final = "filter"
"""The extension with which a broker supports tags in fetches; see docs/guides/beyond-kafka.md."""
DELAYED_EXTENSION: Final = "delayed"
"""The extension with which a broker supports the count of scheduled records in ListOffsets."""


def choose_version(
    api_key: int,
    ours: VersionRange,
    theirs: VersionRange | None,
    *,
    peer: str = "the broker",
    limits: Mapping[int, int] = CLIENT_MAX_VERSIONS,
) -> int:
    """Return the highest version of an API that both sides speak.

    Args:
        api_key: The API.
        ours: The versions of the request that this side knows.
        theirs: The versions that the broker offers; None if it lacks the API.
        peer: The broker's name in messages.
        limits: The newest version of each API that this side uses.

    Raises:
        ApiError: UNSUPPORTED_VERSION: the broker lacks the API, or the ranges do not meet.
    """
    name = ApiKey(api_key).name
    if theirs is None:
        raise ApiError.for_code(ErrorCode.UNSUPPORTED_VERSION, f"{peer} does not offer {name}")
    newest = min(limits.get(api_key, ours.max), ours.max, theirs.max)
    if newest < max(ours.min, theirs.min):
        raise ApiError.for_code(
            ErrorCode.UNSUPPORTED_VERSION,
            f"{peer} offers {name} {theirs}, this client speaks {ours}",
        )
    return newest


def our_range(request: Message, max_version: int | None = None) -> VersionRange:
    """Return the versions in which a request can be sent, limited by `max_version` unless that is None."""
    newest = request.MAX_VERSION if max_version is None else min(request.MAX_VERSION, max_version)
    return VersionRange(request.MIN_VERSION, newest)


def leave_out_unknown(request: Message, extensions: Sequence[str]) -> None:
    """Remove the fields of Headrace's extensions from a request, unless the broker supports them."""
    if isinstance(request, FetchRequest) and FILTER_EXTENSION not in extensions:
        request.headrace_filter = b""
    if isinstance(request, ListOffsetsRequest) and DELAYED_EXTENSION not in extensions:
        request.headrace_delayed = False


def version_table(entries: Iterable[tuple[int, int, int]]) -> dict[int, VersionRange]:
    """Return ranges by API key from (key, min, max) rows."""
    return {key: VersionRange(low, high) for key, low, high in entries}
