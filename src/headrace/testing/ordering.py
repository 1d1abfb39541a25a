"""Faults that are ordered, met and ended, whatever they are faults of."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Generic, Self, TypeVar

from headrace.errors import ConfigError

ExchangeT = TypeVar("ExchangeT")
ReplyT = TypeVar("ReplyT")


class Fault(Generic[ExchangeT, ReplyT]):
    """A fault that was ordered. As a context manager it ends with the block.

    Attributes:
        hits: How many requests it has met.
        left: How many more it will meet; None is any number.
    """

    def __init__(
        self,
        orders: Orders[ExchangeT, ReplyT],
        action: Callable[[ExchangeT], ReplyT],
        left: int | None,
        meets: Callable[[ExchangeT], bool],
    ) -> None:
        self.action = action
        self.hits = 0
        self.left = left
        self.meets = meets
        """Whether it is meant for a request."""
        self._orders = orders

    def take(self, exchange: ExchangeT) -> ReplyT:
        """Reply to a request that it is meant for."""
        self.hits += 1
        if self.left is not None:
            self.left -= 1
            if not self.left:
                self.remove()
        return self.action(exchange)

    def remove(self) -> None:
        """Remove this fault: it applies to no further request."""
        self._orders.remove(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        failure: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.remove()


class Orders(Generic[ExchangeT, ReplyT]):
    """The faults that there are at a time, in the order in which they take their turns."""

    def __init__(self) -> None:
        self._ordered: tuple[Fault[ExchangeT, ReplyT], ...] = ()

    def order(
        self,
        action: Callable[[ExchangeT], ReplyT] | None,
        once: Callable[[ExchangeT], ReplyT] | None,
        times: int | None,
        meets: Callable[[ExchangeT], bool],
    ) -> Fault[ExchangeT, ReplyT]:
        """Add a fault, for some requests or for the next one.

        Raises:
            ConfigError: Neither an action nor `once` was given, or both.
        """
        chosen = once if action is None else action
        if chosen is None or (action is not None and once is not None):
            raise ConfigError(
                "say what to do once: either on(which, action) or on(which, once=action)"
            )
        fault = Fault(self, chosen, 1 if once is not None else times, meets)
        self._ordered = (*self._ordered, fault)
        return fault

    def remove(self, fault: Fault[ExchangeT, ReplyT]) -> None:
        """End a fault; no error if it has ended."""
        self._ordered = tuple(each for each in self._ordered if each is not fault)

    def clear(self) -> None:
        """End all faults of the broker."""
        self._ordered = ()

    def find(self, exchange: ExchangeT) -> Fault[ExchangeT, ReplyT] | None:
        """Return the first fault that is meant for a request."""
        for fault in self._ordered:
            if fault.meets(exchange):
                return fault
        return None
