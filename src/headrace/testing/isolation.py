"""Isolation of tests that share a broker. Topics, groups and faults of fixtures with a wider scope are kept.

After each test its faults end, and its topics and groups are deleted. Topics, groups and faults that were created while
a fixture of a wider scope was set up belong to this fixture, and end with it. A client of such a fixture may join
groups and create topics later, during a test. These stay as long as the client is connected.

This module imports no other module of Headrace, because pytest loads it wherever Headrace is installed.
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
"""The key for the open brokers of fixtures, in the stash of the session's configuration."""
_FACTORIES: Final = "headrace.testing.factories"
_CLIENTS: Final = frozenset({"Clients", "Admin"})
"""The names of the fixture classes of `factories` that have connections."""


def _is_plain(value: object) -> bool:
    """Return whether a value is data without a client, such as an address."""
    if isinstance(value, Mapping):
        return all(map(_is_plain, value.values()))
    if isinstance(value, list | tuple | set | frozenset):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, str | bytes | int | float | PurePath)


class _Moment:
    """The open brokers, and the topics, groups and faults of each at one moment."""

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
                snapshot, faults = snapshot - old_snapshot, faults - old_faults  # noqa: PLW2901 - only the new ones
            self.things[each], self.faults[each] = snapshot, faults


class Isolation:
    """The pytest hooks that isolate the tests of one session from each other."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._before: _Moment | None = None
        """The topics and groups before the present test."""
        self._shares: dict[Any, _Share] = {}
        """The shares of the active fixtures of a wider scope."""
        self._users: dict[Any, str] = {}
        """The active wider fixtures that may hold a client, with their names."""
        self._related: set[str] = set()
        """The names of fixtures that provide brokers and addresses."""
        self._kept: dict[Broker, Snapshot] = {}
        """The topics and groups that tests left for clients of wider fixtures."""

    # Fixtures

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(
        self, fixturedef: pytest.FixtureDef[Any], request: pytest.FixtureRequest
    ) -> Any:
        """Note the topics, groups and faults that the setup of a wider fixture creates."""
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
        # This finalizer runs before the teardown of the fixture itself, which its faults would slow down.
        fixturedef.addfinalizer(lambda: self._end_faults(fixturedef))
        return value

    def _is_user(self, fixturedef: pytest.FixtureDef[Any], value: object, before: _Moment) -> bool:
        """Return whether a fixture may have a client: it may use a broker, and its value is not plain data."""
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
        """Remove the topics and groups of a wider fixture, unless they also belong to another fixture."""
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
        """Note the topics, groups and faults before a test and its fixtures."""
        self._before = _Moment(self._brokers())

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_teardown(self) -> Any:
        """End the test's faults before the teardown of its fixtures; remove its topics and groups afterwards."""
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
