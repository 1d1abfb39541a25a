"""The topics and assignors that the coordinator of consumer groups sees: matching topics, assignors by name."""

from __future__ import annotations

import time
import tomllib
from pathlib import Path
from types import SimpleNamespace

import pytest

from headrace.broker.bounds import expressions
from headrace.broker.coordinators import group_topics
from headrace.broker.coordinators.group_topics import GroupTopics, load_assignors
from headrace.broker.waiting import steps
from headrace.errors import ApiError, ConfigError, ErrorCode
from tests.fixtures.broker_harness import BrokerHarness


def view_of(harness: BrokerHarness) -> GroupTopics:
    services = harness.broker.services
    return GroupTopics(services.topics, services.authorizer, harness.journal, services.steps)


def known(view: GroupTopics, regex: str) -> list[str]:
    """Return the topics that an expression matches. They must be known at once."""
    found = view.matching(regex)
    assert found.is_current
    assert found.names is not None
    return list(found.names)


def take_steps(view: GroupTopics) -> None:
    """Run the broker's next ticks."""
    while view._steps:
        view._steps.tick()
    view._steps._purgatory.deliver()


@pytest.fixture
def view() -> GroupTopics:
    harness = BrokerHarness()
    for name in ("flights", "flights-late", "weather"):
        harness.create_topic(name)
    return view_of(harness)


def test_an_expression_matches_whole_names(view):
    assert known(view, "flights") == ["flights"]
    assert known(view, "fl.*|w.+") == ["flights", "flights-late", "weather"]


@pytest.mark.parametrize("regex", ["(", "a{1001}", r"(a)\1", "(?=a)", "((a{100}){100}){100}"])
def test_an_expression_that_is_wrong_or_too_large_is_refused(view, regex):
    with pytest.raises(ApiError) as raised:
        view.matching(regex)
    assert raised.value.code is ErrorCode.INVALID_REGULAR_EXPRESSION


@pytest.mark.parametrize(
    "regex", ["a" * 1001, "(a?){300}a{300}", "(.{0,100}){10}x", "(.*a){250}", r"\pL{100}"]
)
def test_an_expression_that_takes_too_long_is_refused(view, regex):
    with pytest.raises(ApiError, match="SubscribedTopicRegex") as raised:
        view.matching(regex)
    assert raised.value.code is ErrorCode.INVALID_REGULAR_EXPRESSION


@pytest.mark.parametrize(
    "regex", ["((a+)+)+b", "(x+x+)+y", "(a|aa)+c", "(.*a){90}", "(a?){90}a{90}"]
)
def test_an_expression_that_explodes_elsewhere_takes_its_time_only(view, regex, monkeypatch):
    names = [f"{'a' * 240}{number}" for number in range(50)]
    monkeypatch.setattr(view, "_topics", _Named(names))
    before = time.process_time()
    view.matching(regex)
    take_steps(view)
    assert known(view, regex) == []
    assert time.process_time() - before < 2


def test_an_expression_that_takes_long_is_evaluated_in_steps(view, monkeypatch):
    names = ["b" * 249] * 200 + ["a" * 200]
    monkeypatch.setattr(view, "_topics", _Named(names))
    regex = "(a?){90}a{90}"  # 457 instructions
    costs = _costs_of_steps(monkeypatch)
    assert view.matching(regex) == (None, False)
    assert len(view._steps) == 1
    assert view.matching(regex) == (None, False), "it is evaluated once"
    assert len(view._steps) == 1
    take_steps(view)
    assert view.matching(regex) == ((), True)
    assert len(costs) > 10
    assert max(costs) <= steps.STEP_COST + group_topics._PIECE + 3 * 1000 * 249


def test_an_expression_matches_the_earlier_topics_until_the_new_list_is_evaluated(
    view, monkeypatch
):
    topics = _Named(["b" * 249] * 200 + ["a"])
    monkeypatch.setattr(view, "_topics", topics)
    regex = "(a?){90}a{1,90}"
    assert view.matching(regex).names is None
    topics.changes, topics.names = 2, [*topics.names, "aa"]
    take_steps(view)
    assert view.matching(regex) == (("a",), False), "and the latest names are looked at next"
    take_steps(view)
    assert view.matching(regex) == (("a", "aa"), True)


def test_no_more_than_so_many_expressions_are_evaluated_at_a_time(view, monkeypatch):
    monkeypatch.setattr(view, "_topics", _Named(["b" * 249] * 200))
    monkeypatch.setattr(group_topics, "_EVALUATED_LIMIT", 2)
    for number in (1, 2):
        assert view.matching(f"(a?){{90}}a{{90}}{number}").names is None
    with pytest.raises(ApiError) as raised:
        view.matching("(a?){90}a{90}3")
    assert raised.value.code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    take_steps(view)
    assert view.matching("(a?){90}a{90}3").names is None


def test_the_number_of_remembered_topic_names_is_bounded(view, monkeypatch):
    monkeypatch.setattr(group_topics, "_REMEMBERED_NAMES_LIMIT", 6)
    for regex in (".*", ".*.*", ".?.*"):
        assert len(known(view, regex)) == 3
        assert view._names_count <= 6
    assert list(view._known) == [".*.*", ".?.*"]


def _costs_of_steps(monkeypatch):
    """Return a list that grows by the result of each step of the work except the last."""
    costs: list[int] = []
    step = steps._step

    def counted(*arguments):
        result = step(*arguments)
        if result.outcome is None:
            costs.append(result.done)
        return result

    monkeypatch.setattr(steps, "_step", counted)
    return costs


class _Named:
    """Topics that have only names."""

    changes = 1

    def __init__(self, names):
        self.names = names

    def __iter__(self):
        return (SimpleNamespace(name=name) for name in self.names)


def test_slow_expressions_are_for_brokers_with_few_topics(view, monkeypatch):
    regex = "(a?){90}b"
    assert known(view, regex) == []
    monkeypatch.setattr(expressions, "_STEPS_LIMIT", 1000)
    assert known(view, regex) == [], "it is remembered"
    monkeypatch.setattr(view, "_topics", _Named(["a" * 249] * 100))
    with pytest.raises(ApiError, match="takes too long"):
        view.matching(regex)


def test_a_created_topic_is_added_to_the_matches():
    harness = BrokerHarness()
    view = view_of(harness)
    assert known(view, "t.*") == []
    harness.create_topic("t1")
    assert known(view, "t.*") == ["t1"]


def test_a_missing_regex_library_is_reported_to_client_and_log(monkeypatch):
    harness = BrokerHarness()
    view = view_of(harness)
    monkeypatch.setattr(expressions, "re2", None)
    for _ in range(2):
        with pytest.raises(ApiError, match=r"headrace\[server\]"):
            view.matching("a")
    assert harness.journal.events("warning") == ["regular_expressions_not_evaluated"]
    assert "google-re2" in str(harness.journal.lines)


def test_the_extra_of_servers_brings_the_library():
    project = tomllib.loads((Path(__file__).parents[4] / "pyproject.toml").read_text())
    extras = project["project"]["optional-dependencies"]
    assert "headrace[regex]" in extras["server"]
    assert any(each.startswith("google-re2") for each in extras["regex"])


def test_the_first_assignor_that_is_named_is_the_default():
    assert list(load_assignors("range, uniform")) == ["range", "uniform"]


@pytest.mark.parametrize("names", ["", "nobody's"])
def test_missing_assignors_are_refused(names):
    with pytest.raises(ConfigError, match=r"group\.consumer\.assignors"):
        load_assignors(names)


def test_an_installed_package_offers_an_assignor_by_name(monkeypatch):
    class Mine:
        name = ""

        def assign(self, members, topics):
            return {}

    found = [SimpleNamespace(load=lambda: Mine)]
    monkeypatch.setattr("importlib.metadata.entry_points", lambda **_: found)
    assert load_assignors("mine")["mine"].name == "mine"
