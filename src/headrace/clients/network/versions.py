"""Which version of each API the clients speak: the highest that both sides know, up to a cap of ours."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from headrace.errors import ApiError, ErrorCode
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.codec import Message
from headrace.protocol.messages.fetch import FetchRequest
from headrace.protocol.messages.list_offsets import ListOffsetsRequest
from headrace.protocol.versions import VersionRange

CLIENT_MAX_VERSIONS: Final[dict[int, int]] = {
    # Fetch 13, Produce 13, OffsetCommit 10 and OffsetFetch 10 speak of topics by id only; the flows speak of names.
    ApiKey.PRODUCE: 12,
    ApiKey.FETCH: 12,
    ApiKey.LIST_OFFSETS: 9,
    ApiKey.METADATA: 12,
    ApiKey.OFFSET_COMMIT: 9,
    ApiKey.OFFSET_FETCH: 9,
    ApiKey.FIND_COORDINATOR: 4,
    ApiKey.INIT_PRODUCER_ID: 5,
    # From 4 on it is the brokers' among themselves.
    ApiKey.ADD_PARTITIONS_TO_TXN: 3,
    ApiKey.API_VERSIONS: 3,
    ApiKey.DESCRIBE_GROUPS: 5,
    ApiKey.DESCRIBE_CLUSTER: 1,
}
"""Caps below the newest version that the codec knows, where a newer one changes what a request means."""


FILTER_EXTENSION: Final = "filter"
"""By this word brokers say that a fetch may name tags, see docs/guides/beyond-kafka.md."""
DELAYED_EXTENSION: Final = "delayed"
"""By this one, that ListOffsets may ask how many delayed records wait."""


def choose_version(
    api_key: int, ours: VersionRange, theirs: VersionRange | None, *, peer: str = "the broker"
) -> int:
    """Return the highest version of an API that both sides speak.

    Raises:
        ApiError: UNSUPPORTED_VERSION: the broker lacks the API, or the ranges do not meet.
    """
    name = ApiKey(api_key).name
    if theirs is None:
        raise ApiError.for_code(ErrorCode.UNSUPPORTED_VERSION, f"{peer} does not offer {name}")
    newest = min(CLIENT_MAX_VERSIONS.get(api_key, ours.max), ours.max, theirs.max)
    if newest < max(ours.min, theirs.min):
        raise ApiError.for_code(
            ErrorCode.UNSUPPORTED_VERSION,
            f"{peer} offers {name} {theirs}, this client speaks {ours}",
        )
    return newest


def our_range(request: Message, max_version: int | None = None) -> VersionRange:
    """Return the versions in which a request can be sent, none above `max_version` if there is such a bound."""
    newest = request.MAX_VERSION if max_version is None else min(request.MAX_VERSION, max_version)
    return VersionRange(request.MIN_VERSION, newest)


def leave_out_unknown(request: Message, extensions: Sequence[str]) -> None:
    """Take out of a request what only Headrace's brokers understand, unless this one says that it does."""
    if isinstance(request, FetchRequest) and FILTER_EXTENSION not in extensions:
        request.headrace_filter = b""
    if isinstance(request, ListOffsetsRequest) and DELAYED_EXTENSION not in extensions:
        request.headrace_delayed = False


def version_table(entries: Iterable[tuple[int, int, int]]) -> dict[int, VersionRange]:
    """Return ranges by API key from (key, min, max) rows."""
    return {key: VersionRange(low, high) for key, low, high in entries}
