"""Send every expensive request to a broker, and compare what each costs with its bound."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from headrace.protocol.api_keys import ApiKey
from tests.cost.bounds import BOUNDS, Bound
from tests.cost.broker import Connection, Cost, WatchedBroker
from tests.cost.requests import Case, Values, cases
from tests.cost.shapes import request_schemas

ATTEMPTS: Final = 3
"""The number of measurements of a slow step. Other processes can only make a measurement slower, never faster."""
BEFORE_AUTHENTICATION: Final = {"SaslHandshakeRequest", "SaslAuthenticateRequest"}
"""The requests that would change the principal of an authenticated connection."""


def drive(
    broker: WatchedBroker,
    values: Values,
    names: Iterable[str],
    *,
    as_admin: bool = False,
    thorough: bool = True,
) -> Iterator[tuple[Case, Cost]]:
    """Send each expensive request of some APIs, and yield it with its cost.

    Args:
        broker: The broker.
        values: The names that exist at the broker.
        names: The names of the requests.
        as_admin: Whether to send them as an administrator with all permissions, or as a user with few.
        thorough: See `cases`.
    """
    sender = _Sender(broker, as_admin=as_admin)
    for name in names:
        for case in cases(name, values, thorough=thorough):
            cost = sender.measure(case)
            bound = bound_of(name)
            for _ in range(ATTEMPTS - 1):
                if cost.loop_ms <= bound.loop_ms:
                    break
                again = sender.measure(case)
                cost = again if again.loop_ms < cost.loop_ms else cost
            yield case, cost
    sender.close()


class _Sender:
    """A connection that is opened again after the broker has closed it."""

    def __init__(self, broker: WatchedBroker, *, as_admin: bool) -> None:
        self._broker = broker
        self._as_admin = as_admin
        self._connection: Connection | None = None

    def measure(self, case: Case) -> Cost:
        if self._connection is None:
            stranger = case.name.split(" ")[0] in BEFORE_AUTHENTICATION
            self._connection = (
                Connection(self._broker.user)
                if stranger
                else self._broker.connection(as_admin=self._as_admin)
            )
        cost = self._broker.measure([case.frame], self._connection, wait_s=20)
        if cost.outcome != "answered" or case.name.split(" ")[0] in BEFORE_AUTHENTICATION:
            self.close()
        return cost

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def bound_of(name: str) -> Bound:
    """Return the bound of a request by its name."""
    return BOUNDS[ApiKey(request_schemas()[name][1].api_key)]


def violations(cost: Cost, bound: Bound, *, slack: float = 1.0) -> list[str]:
    """Return the respects in which a cost is above its bound."""
    found = []
    if cost.loop_ms > bound.loop_ms * slack:
        found.append(f"a step of {cost.loop_ms:.0f} ms")
    if cost.memory_mb > bound.memory_mb:
        found.append(f"{cost.memory_mb:.0f} MiB of memory")
    if cost.answer_bytes > bound.answer_bytes:
        found.append(f"an answer of {cost.answer_bytes} bytes")
    return found
