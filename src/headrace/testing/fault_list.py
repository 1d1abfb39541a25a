"""The list of faults that a test has set, for the fakes of Kafka and of Kinesis."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Generic, Self, TypeVar

from headrace.errors import ConfigError

ExchangeT = TypeVar("ExchangeT")
ReplyT = TypeVar("ReplyT")


class Fault(Generic[ExchangeT, ReplyT]):
    """A fault that a test has set. As a context manager it ends with the block.

    Attributes:
        hits: The number of requests to which the fault has applied.
        left: The number of requests to which the fault still applies. None is any number.
    """

    def __init__(
        self,
        faults: FaultList[ExchangeT, ReplyT],
        action: Callable[[ExchangeT], ReplyT],
        left: int | None,
        meets: Callable[[ExchangeT], bool],
    ) -> None:
        self.action = action
        self.hits = 0
        self.left = left
        self.meets = meets
        """Returns whether the fault applies to a request."""
        self._faults = faults

    def take(self, exchange: ExchangeT) -> ReplyT:
        """Reply to a request to which the fault applies."""
        self.hits += 1
        if self.left is not None:
            self.left -= 1
            if not self.left:
                self.remove()
        return self.action(exchange)

    def remove(self) -> None:
        """Remove this fault: it applies to no further request."""
        self._faults.remove(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        failure: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.remove()


class FaultList(Generic[ExchangeT, ReplyT]):
    """The active faults, in the order in which they were set. The first one that fits applies to a request."""

    def __init__(self) -> None:
        self._ordered: tuple[Fault[ExchangeT, ReplyT], ...] = ()

    def order(
        self,
        action: Callable[[ExchangeT], ReplyT] | None,
        once: Callable[[ExchangeT], ReplyT] | None,
        times: int | None,
        meets: Callable[[ExchangeT], bool],
    ) -> Fault[ExchangeT, ReplyT]:
        """Add a fault for several requests or for the next one.

        Raises:
            ConfigError: Neither `action` nor `once` was passed, or both.
        """
        chosen = once if action is None else action
        if chosen is None or (action is not None and once is not None):
            raise ConfigError(
                "pass exactly one action: either on(which, action) or on(which, once=action)"
            )
        fault = Fault(self, chosen, 1 if once is not None else times, meets)
        self._ordered = (*self._ordered, fault)
        return fault

    def remove(self, fault: Fault[ExchangeT, ReplyT]) -> None:
        """Remove a fault. No error is raised if it is not in the list."""
        self._ordered = tuple(each for each in self._ordered if each is not fault)

    def clear(self) -> None:
        """Remove all faults of the list."""
        self._ordered = ()

    def find(self, exchange: ExchangeT) -> Fault[ExchangeT, ReplyT] | None:
        """Return the first fault that applies to a request; None if there is none."""
        for fault in self._ordered:
            if fault.meets(exchange):
                return fault
        return None
