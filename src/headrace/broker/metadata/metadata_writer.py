"""The metadata store of one broker: the commits of its requests, and the image of what any broker has committed."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Final, Literal

from headrace.broker.metadata.commit_lane import Change, CommitError, CommitLane, Merge
from headrace.broker.metadata.store_client import StoreClient
from headrace.core.cluster.image import MetadataImage
from headrace.deferred import Deferred
from headrace.errors import ApiError, StorageError
from headrace.ports import (
    Check,
    Delete,
    Journal,
    MetadataEntry,
    MetadataSession,
    MetadataStore,
    Put,
    check_of,
)

BROKER_COMMITS: Final = "brokers/commit/"
"""The prefix of the entries of lanes: before the broker's id for requests, and before `<id>/<lane>` for others."""
LaneName = Literal["isr", "controller", "member", "damaged"]
"""A lane beside the lane of requests.

`isr`: the changes that leaders of partitions make. `controller`: those of the controller. `member`: the registration of
the broker in its cluster, and its heartbeats. `damaged`: the replicas that a start found damaged."""


def replacement(key: str, entry: MetadataEntry | None, value: bytes | None) -> Change:
    """Return the change that replaces an entry if no other request has changed the entry.

    Args:
        key: The key.
        entry: The present entry; None if there is none.
        value: The new value; None to delete the entry.
    """
    return [check_of(key, entry)], [Delete(key) if value is None else Put(key, value)]


class MetadataWriter:
    """Commits changes, and keeps the image up to date."""

    __slots__ = ("_client", "_key", "_lanes", "_requests", "image", "next_deadline_ms")

    def __init__(
        self, store: MetadataStore, broker_id: int, process: bytes, journal: Journal
    ) -> None:
        """Write as one process of a broker. `process` is unique to it."""
        self.next_deadline_ms: int | None = None
        """The time at which `tick` has something to do next; None if there is no such time."""
        self._client = StoreClient(store, broker_id, process, journal, self._plan)
        self.image = self._client.image
        """All entries of the store. `begin` fills the image."""
        self._key = f"{BROKER_COMMITS}{broker_id}"
        self._requests = CommitLane(self._client, self._key)
        self._lanes: dict[str, CommitLane] = {"": self._requests}

    # Start and end

    def begin(self, admit: Callable[[MetadataImage], object] | None = None) -> None:
        """Take over from earlier processes of this broker, whose commits in flight become void; fill the image.

        Args:
            admit: Called with the image before this process takes over. It raises an error if this process may not;
                then the store is unchanged. None to take over from any process.

        Raises:
            StorageError: The store does not respond, or another process was faster.
        """
        self._client.begin(*(() if admit is None else (admit,)))
        self._plan()

    def close(self) -> None:
        """End the watch of the store: the broker applies no further changes."""
        self._client.close()

    # The session

    @property
    def session(self) -> MetadataSession:
        """The session of the store."""
        return self._client.store.session

    @property
    def is_taken_over(self) -> bool:
        """Whether the image shows that another process of this broker has begun."""
        return self._client.is_taken_over

    def on_renewed(self, call: Callable[[], object]) -> None:
        """Call a function when another session may have begun. The function may only set a deadline."""
        self._client.on_renewed = call

    # Commits

    def lane(self, name: LaneName) -> CommitLane:
        """Return the lane of a name. Its commits wait for each other, and not for the commits of other lanes."""
        lane = self._lanes.get(name)
        if lane is None:
            lane = self._lanes[name] = CommitLane(self._client, f"{self._key}/{name}")
        return lane

    def commit(
        self, checks: Sequence[Check], operations: Sequence[Put | Delete]
    ) -> Deferred[CommitError]:
        """Apply all operations if all checks hold, in the lane of requests; see `CommitLane.commit`."""
        return self._requests.commit(checks, operations)

    def committing(
        self, checks: Sequence[Check], operations: Sequence[Put | Delete]
    ) -> Generator[Deferred[CommitError], CommitError, None]:
        """Commit like `commit`, and wait for the result; for use with `yield from` in a `Work`.

        Raises:
            Conflict: See `CommitError`.
            ApiError: See `CommitError`.
        """
        yield from _result_of(self.commit(checks, operations))

    def merge(self, merge: Merge) -> Deferred[CommitError]:
        """Apply the change that `merge` returns, in the lane of requests; see `CommitLane.merge`."""
        return self._requests.merge(merge)

    def merging(self, merge: Merge) -> Generator[Deferred[CommitError], CommitError, None]:
        """Commit like `merge`, and wait for the result; for use with `yield from` in a `Work`.

        Raises:
            ApiError: See `CommitError`. Conflict does not occur.
        """
        yield from _result_of(self.merge(merge))

    def wait(self, result: Deferred[CommitError]) -> CommitError:
        """Block until a commit has its result, and return the result."""
        while not result.done:
            self._client.wait_for_arrival()
            self._proceed()
        return result.value

    def commit_and_wait(self, checks: Sequence[Check], operations: Sequence[Put | Delete]) -> None:
        """Commit like `commit`, and block until the image has the commit: outside of requests.

        Raises:
            Conflict: A check does not hold.
            StorageError: The commit is not stored, or its outcome is unknown.
        """
        self._wait_for_success(self.commit(checks, operations))

    def merge_and_wait(self, merge: Merge) -> None:
        """Commit like `merge`, and block until the image has the change: outside of requests.

        Raises:
            StorageError: The change is not stored, or its outcome is unknown.
        """
        self._wait_for_success(self.merge(merge))

    def _wait_for_success(self, result: Deferred[CommitError]) -> None:
        error = self.wait(result)
        if isinstance(error, ApiError):
            raise StorageError(error.message) from error
        if error is not None:
            raise error

    # Time

    def tick(self, now_ms: int) -> None:
        """Apply the changes of all brokers, and complete what has become known of commits."""
        self._client.now_ms = now_ms
        if self.next_deadline_ms is None or now_ms < self.next_deadline_ms:
            return
        self._proceed()
        for lane in self._lanes.values():
            lane.tick(now_ms)
        self._plan()

    def _proceed(self) -> None:
        self._client.has_arrivals = False
        self._client.apply()
        for lane in list(self._lanes.values()):  # a consumer of a result may use another lane
            lane.proceed()

    def _plan(self) -> None:
        """Compute `next_deadline_ms` again, after a change of state."""
        client = self._client
        busy = [lane for lane in self._lanes.values() if not lane.is_idle]
        if client.has_notifications or (busy and client.has_arrivals):
            self.next_deadline_ms = 0
        else:
            deadlines = (lane.next_deadline_ms for lane in busy)
            self.next_deadline_ms = min((due for due in deadlines if due is not None), default=None)


def _result_of(
    result: Deferred[CommitError],
) -> Generator[Deferred[CommitError], CommitError, None]:
    error = result.value if result.done else (yield result)
    if error is not None:
        raise error
