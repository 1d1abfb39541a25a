"""What the coordinator of consumer groups is shown: topics that match, assignors by name."""

from __future__ import annotations

import time
import tomllib
from pathlib import Path
from types import SimpleNamespace

import pytest

from headrace.broker.coordinators import group_topics
from headrace.broker.coordinators.group_topics import GroupTopics, load_assignors
from headrace.errors import ApiError, ConfigError, ErrorCode
from tests.fixtures.broker_harness import BrokerHarness


@pytest.fixture
def view() -> GroupTopics:
    harness = BrokerHarness()
    for name in ("flights", "flights-late", "weather"):
        harness.create_topic(name)
    return GroupTopics(harness.broker.topics, harness.broker.authorizer, harness.journal)


def test_an_expression_matches_whole_names(view):
    assert list(view.matching("flights")) == ["flights"]
    assert list(view.matching("fl.*|w.+")) == ["flights", "flights-late", "weather"]


@pytest.mark.parametrize("regex", ["(", "a{1001}", r"(a)\1", "(?=a)", "((a{100}){100}){100}"])
def test_an_expression_that_is_wrong_or_too_large_is_refused(view, regex):
    with pytest.raises(ApiError) as raised:
        list(view.matching(regex))
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
    assert view.matching(regex) == ()
    assert time.process_time() - before < 2


class _Named:
    """Topics that have only names."""

    changes = 1

    def __init__(self, names):
        self.names = names

    def __iter__(self):
        return (SimpleNamespace(name=name) for name in self.names)


def test_slow_expressions_are_for_brokers_with_few_topics(view, monkeypatch):
    regex = "(a?){90}b"
    assert view.matching(regex) == ()
    monkeypatch.setattr(group_topics, "_STEPS_LIMIT", 1000)
    assert view.matching(regex) == (), "it is remembered"
    monkeypatch.setattr(view, "_topics", _Named(["a" * 249] * 100))
    with pytest.raises(ApiError, match="takes too long"):
        view.matching(regex)


def test_topics_that_come_and_go_are_seen():
    harness = BrokerHarness()
    view = GroupTopics(harness.broker.topics, harness.broker.authorizer, harness.journal)
    assert view.matching("t.*") == ()
    harness.create_topic("t1")
    assert view.matching("t.*") == ("t1",)


def test_without_the_library_the_client_and_the_log_say_what_to_install(monkeypatch):
    harness = BrokerHarness()
    view = GroupTopics(harness.broker.topics, harness.broker.authorizer, harness.journal)
    monkeypatch.setattr(group_topics, "re2", None)
    for _ in range(2):
        with pytest.raises(ApiError, match=r"headrace\[server\]"):
            list(view.matching("a"))
    assert harness.journal.events("warning") == ["regular_expressions_not_evaluated"]
    assert "google-re2" in str(harness.journal.lines)


def test_the_extra_of_servers_brings_the_library():
    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())
    extras = project["project"]["optional-dependencies"]
    assert "headrace[regex]" in extras["server"]
    assert any(each.startswith("google-re2") for each in extras["regex"])


def test_the_first_assignor_that_is_named_is_the_default():
    assert list(load_assignors("range, uniform")) == ["range", "uniform"]


@pytest.mark.parametrize("names", ["", "nobody's"])
def test_assignors_that_are_not_there_are_refused(names):
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
