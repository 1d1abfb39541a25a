"""Isolation of tests that share a broker, without touching what fixtures of a wider scope still use.

After each test its faults end, and its topics and groups go. What came into being while a fixture of a wider scope was
set up is that fixture's, and goes with it; so do its faults. A client that such a fixture holds may join groups and
make topics later, in the midst of a test: these stay as long as it is connected.

The module imports nothing else of Headrace, for pytest loads it wherever Headrace is installed.
"""

from __future__ import annotations

from collections.abc import Mapping
from inspect import isasyncgenfunction, isgeneratorfunction, unwrap
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, Final

import pytest

if TYPE_CHECKING:
    from headrace.testing.broker import Broker, Snapshot
    from headrace.testing.faults import FaultState

OPEN_BROKERS: Final = pytest.StashKey[list["Broker"]]()
"""The brokers that fixtures have opened, of the session."""
_FACTORIES: Final = "headrace.testing.factories"
_CLIENTS: Final = frozenset({"Clients", "Admin"})
"""The types of fixtures of `factories` that hold connections."""


def _is_plain(value: object) -> bool:
    """Return whether a value is data that holds no client, such as an address."""
    if isinstance(value, Mapping):
        return all(map(_is_plain, value.values()))
    if isinstance(value, list | tuple | set | frozenset):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, str | bytes | int | float | PurePath)


class _Moment:
    """The brokers that are open, and what each had at one moment."""

    def __init__(self, brokers: list[Broker]) -> None:
        self.had = {each: (each.snapshot(), each.faults.state()) for each in brokers}
        self.uses = {each: each.uses for each in brokers}


class _Share:
    """The topics and groups that a fixture of a wider scope created."""

    def __init__(self, before: _Moment, after: _Moment) -> None:
        self.things: dict[Broker, Snapshot] = {}
        self.faults: dict[Broker, FaultState] = {}
        for each, (snapshot, faults) in after.had.items():
            if each in before.had:
                old_snapshot, old_faults = before.had[each]
                snapshot, faults = snapshot - old_snapshot, faults - old_faults  # noqa: PLW2901 - what is new of them
            self.things[each], self.faults[each] = snapshot, faults


class Isolation:
    """Keeps the tests of one session apart."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._before: _Moment | None = None
        """The topics and groups before the present test."""
        self._shares: dict[Any, _Share] = {}
        """The shares of the active fixtures of a wider scope."""
        self._users: dict[Any, str] = {}
        """The active wider fixtures that may hold a client, with their names."""
        self._related: set[str] = set()
        """Names of fixtures that give brokers and addresses."""
        self._kept: dict[Broker, Snapshot] = {}
        """The topics and groups that tests left for clients of wider fixtures."""

    # Fixtures

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(
        self, fixturedef: pytest.FixtureDef[Any], request: pytest.FixtureRequest
    ) -> Any:
        """Note what a fixture of a wider scope brings."""
        del request
        if fixturedef.scope == "function":
            return (yield)
        before = _Moment(self._brokers())
        value = yield
        share = _Share(before, _Moment(self._brokers()))
        self._shares[fixturedef] = share
        if fixturedef.func.__module__ == _FACTORIES:
            self._related.add(fixturedef.argname)
            if type(value).__name__ in _CLIENTS:
                self._users[fixturedef] = fixturedef.argname
        elif self._is_user(fixturedef, value, before):
            self._users[fixturedef] = fixturedef.argname
        # It runs before what the fixture itself does at its end, which its faults would slow down.
        fixturedef.addfinalizer(lambda: self._end_faults(fixturedef))
        return value

    def _is_user(self, fixturedef: pytest.FixtureDef[Any], value: object, before: _Moment) -> bool:
        """Return whether a fixture may hold a client: it has used a broker or could, and returns no plain data."""
        names = self._related.union(self._users.values())
        used = any(each.uses != before.uses.get(each, 0) for each in self._brokers())
        if not used and names.isdisjoint(fixturedef.argnames):
            return False
        made_by = unwrap(fixturedef.func)  # pytest-asyncio wraps it
        return not _is_plain(value) or isgeneratorfunction(made_by) or isasyncgenfunction(made_by)

    def _end_faults(self, fixturedef: pytest.FixtureDef[Any]) -> None:
        share = self._shares.get(fixturedef)
        if share is not None:
            share.faults.clear()
            self._clear_faults()

    def pytest_fixture_post_finalizer(
        self, fixturedef: pytest.FixtureDef[Any], request: pytest.FixtureRequest
    ) -> None:
        """Remove what a fixture of a wider scope has left, unless it is also another one's."""
        del request
        self._users.pop(fixturedef, None)
        share = self._shares.pop(fixturedef, None)
        if share is None:
            return
        for each, things in share.things.items():
            if each in self._brokers():
                each.remove(things - self._of_fixtures(each))

    # Tests

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self) -> None:
        """Note what there is before a test and its fixtures."""
        self._before = _Moment(self._brokers())

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_teardown(self) -> Any:
        """End the test's faults before its fixtures end, and remove what it has left afterwards."""
        self._clear_faults()
        try:
            return (yield)
        finally:
            self._clear_faults()
            for each in self._brokers():
                self._reset(each)
            self._before = None

    def _reset(self, broker: Broker) -> None:
        if self._before is not None and broker in self._before.had:
            stays = self._before.had[broker][0] - self._kept.pop(broker, broker.NOTHING)
        else:
            stays = broker.NOTHING
        stays |= self._of_fixtures(broker)
        if self._users:
            held = broker.held_by_clients() - stays
            self._kept[broker] = held
            stays |= held
        broker.remove(broker.snapshot() - stays)

    def _of_fixtures(self, broker: Broker) -> Snapshot:
        found = broker.NOTHING
        for share in self._shares.values():
            found |= share.things.get(broker, broker.NOTHING)
        return found

    def _clear_faults(self) -> None:
        for each in self._brokers():
            each.faults.keep([share.faults.get(each) for share in self._shares.values()])

    def _brokers(self) -> list[Broker]:
        return list(self._config.stash.get(OPEN_BROKERS, ()))
