"""A process of a broker as a client of the metadata store: its claim, and the image of what any broker has committed.

A process claims the store when it begins: it writes the entry `brokers/process/<id>`. All its commits check the version
that the entry got by the claim. So commits of an earlier process that are still in flight become void, and an earlier
process that still runs cannot change anything.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

import msgspec

from headrace.core.cluster.image import MetadataImage
from headrace.deferred import Deferred
from headrace.errors import StorageError
from headrace.ports import (
    Check,
    Conflict,
    Journal,
    MetadataBatch,
    MetadataStore,
    Put,
    check_of,
    versions_of,
)

BROKER_PROCESSES: Final = "brokers/process/"
"""The prefix of the claim, before the broker's id."""
TAKEN_OVER: Final = "another process of this broker has begun"
_BEGIN_ATTEMPTS: Final = 10


class _Claim(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The value of the claim: the process that made it."""

    process: str
    format: int = 1


def _nothing() -> None:
    pass


def _admit_any(_image: MetadataImage) -> None:
    pass


class StoreClient:
    """The metadata store, as one process of a broker follows it."""

    __slots__ = (
        "_arrival",
        "_batches",
        "_end_watch",
        "_is_applying",
        "_key",
        "_on_change",
        "_version",
        "has_arrivals",
        "image",
        "journal",
        "now_ms",
        "on_renewed",
        "process",
        "store",
    )

    def __init__(
        self,
        store: MetadataStore,
        broker_id: int,
        process: bytes,
        journal: Journal,
        on_change: Callable[[], object],
    ) -> None:
        """Follow a store.

        Args:
            store: The metadata store.
            broker_id: The id of the broker.
            process: An id that only this process has.
            journal: Receives the log events.
            on_change: Called when something has arrived, and when a lane has another state.
        """
        self.store = store
        self.process = process.hex()
        """The id of this process."""
        self.journal = journal
        self.image = MetadataImage()
        """All entries of the store. `begin` fills the image."""
        self.now_ms = 0
        """The time of the last tick."""
        self.has_arrivals = False
        """Whether notifications or outcomes have arrived that not every lane has looked at."""
        self._key = f"{BROKER_PROCESSES}{broker_id}"
        self._version = 0
        """The version of the claim of this process."""
        self._batches: deque[MetadataBatch] = deque()
        """Notifications of the store that the image has not applied yet."""
        self._is_applying = False
        self._arrival: Deferred[None] | None = None
        """Resolved by the next notification or outcome; None while no call blocks."""
        self._end_watch: Callable[[], object] = _nothing
        self.on_renewed: Callable[[], object] = _nothing
        """Called when another session may have begun. The callee may only set a deadline."""
        self._on_change = on_change

    # The claim

    def begin(self, admit: Callable[[MetadataImage], object] = _admit_any) -> None:
        """Claim the store, and fill the image.

        Args:
            admit: Called with the image before this process takes over from another one. It raises an error if this
                process may not take over; then the store is unchanged.

        Raises:
            StorageError: The store does not respond, or another process was faster.
        """
        outcome = self._claim(Check(self._key, "absent"))  # also shows whether the store responds
        self._end_watch = self.store.watch(self._notified)
        self._wait_and_apply()
        for _ in range(_BEGIN_ATTEMPTS):
            if not isinstance(outcome, Conflict):
                break
            admit(self.image)
            outcome = self._claim(check_of(self._key, self.image.get(self._key)))
            if isinstance(outcome, Conflict):  # the claim of another process arrives meanwhile
                self._wait_and_apply()
        else:
            raise StorageError(f"{self._key}: {TAKEN_OVER}")
        self._version = outcome[self._key]
        while self._stored_version < self._version:
            self._wait_and_apply()

    def _claim(self, check: Check) -> dict[str, int] | Conflict:
        """Write the claim if a check holds.

        Raises:
            StorageError: The store does not respond.
        """
        put = Put(self._key, msgspec.json.encode(_Claim(self.process)))
        outcome = self.store.wait(self.store.commit([check], [put]))
        return outcome if isinstance(outcome, Conflict) else versions_of(outcome)

    def close(self) -> None:
        """End the watch of the store: the image has no further changes."""
        self._end_watch()

    @property
    def check(self) -> Check:
        """The check of every commit: no other process of this broker has begun."""
        return Check(self._key, self._version)

    @property
    def is_taken_over(self) -> bool:
        """Whether the image shows that another process of this broker has begun."""
        return self._stored_version > self._version

    @property
    def _stored_version(self) -> int:
        entry = self.image.get(self._key)
        return -1 if entry is None else entry.version

    # Notifications

    def _notified(self, batch: MetadataBatch) -> None:
        self._batches.append(batch)
        self.wake()

    def wake(self) -> None:
        """Note that something has arrived."""
        self.has_arrivals = True
        self._on_change()
        if self._arrival is not None:
            arrival, self._arrival = self._arrival, None
            arrival.resolve(None)

    def plan(self) -> None:
        """Note that a lane has another state."""
        self._on_change()

    def wait_for_arrival(self) -> None:
        """Block until something has arrived.

        Raises:
            StorageError: The store cannot be reached.
        """
        if not self.has_arrivals:
            arrival = self._arrival = Deferred()
            self.store.wait(arrival)

    def _wait_and_apply(self) -> None:
        self.wait_for_arrival()
        self.has_arrivals = False
        self.apply()

    @property
    def has_notifications(self) -> bool:
        """Whether there are notifications that the image has not applied."""
        return bool(self._batches)

    def apply(self) -> None:
        """Apply the notifications of the store to the image."""
        if self._is_applying:  # a consumer of the image commits: the loop below goes on after it
            return
        self._is_applying = True
        try:
            while self._batches:
                for error in self.image.apply(self._batches.popleft()):
                    self.journal.error("metadata_entry_not_applied", error=str(error))
        finally:
            self._is_applying = False

    # The session

    def renew(self) -> None:
        """Begin another session after the present one was lost."""
        self.store.renew().on_done(self._renewed)

    def _renewed(self, error: StorageError | None) -> None:
        if error is not None:
            self.journal.error("metadata_session_not_renewed", error=str(error))
        else:
            self.on_renewed()
