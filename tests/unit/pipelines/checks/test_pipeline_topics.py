"""Topics of plans, with a broker of this process that listens on a port."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.clients.blocking import BlockingClient, NewTopic
from headrace.config.resources import ConfigResourceType
from headrace.errors import TransportError
from headrace.pipelines import pipeline, topic
from headrace.pipelines.checks.declarations import check
from headrace.pipelines.checks.topics import check_topics, create_topics
from headrace.pipelines.plan import DefaultCluster, Plan, PlanError


def plan(tmp_path: Any, connection: DefaultCluster, source: Any, sink: Any) -> Plan:
    declare = pipeline(source=source, sink=sink, name="one")
    return check([declare(lambda records: records)], connection, str(tmp_path))[0]


def test_topics_are_found_or_created_by_choice(headrace_bootstrap: str, tmp_path: Any) -> None:
    connection = DefaultCluster(headrace_bootstrap)
    source = topic("there, missing", schema="a INT", on_error="dlq:letters")
    sink = topic("made", create=3, configs={"cleanup.policy": "compact"}, key="a")
    with BlockingClient(headrace_bootstrap) as client:
        client.create_topics([NewTopic("there", 1)])
        with pytest.raises(PlanError) as caught:
            check_topics([plan(tmp_path, connection, source, sink)], connection)
        (problem,) = caught.value.problems
        assert problem.message.startswith("there is no topic missing: create it, or declare topic(")

        client.create_topics([NewTopic("missing", 1)])
        plans = check_topics([plan(tmp_path, connection, source, sink)], connection)
        assert plans[0].creates == ("letters", "made")
        create_topics(plans, connection)
        create_topics(plans, connection)  # another process has created the topic

        assert len(client.metadata(["made"]).topics["made"].partitions) == 3
        configs = client.describe_configs(ConfigResourceType.TOPIC, ["made"])["made"]
        assert {each.name: each.value for each in configs}["cleanup.policy"] == "compact"
        again = check_topics([plan(tmp_path, connection, source, sink)], connection)
        assert again[0].creates == ()


def test_a_topic_that_one_pipeline_creates_exists_for_the_others(
    headrace_bootstrap: str, tmp_path: Any
) -> None:
    connection = DefaultCluster(headrace_bootstrap)
    made = topic("first", format="text", create=1)
    use = topic("first", format="text")
    declare = pipeline(source=use, sink=topic("second", format="text", create=1), name="two")
    plans = check(
        [
            pipeline(source=made, sink=made, name="one")(lambda records: records),
            declare(lambda records: records),
        ],
        connection,
        str(tmp_path),
    )

    assert [each.creates for each in check_topics(plans, connection)] == [
        ("first",),
        ("first", "second"),
    ]


@pytest.mark.parametrize("option", ["subscribePattern", "subscribepattern", "ASSIGN"])
def test_a_source_whose_options_select_needs_no_topic_of_its_name(
    headrace_bootstrap: str, tmp_path: Any, option: str
) -> None:
    connection = DefaultCluster(headrace_bootstrap)
    value = '{"x": [0]}' if option == "ASSIGN" else "orders[.].*"
    source = topic("of any name", schema="a INT", options={option: value})
    sink = topic("made", create=1, key="a")

    (found,) = check_topics([plan(tmp_path, connection, source, sink)], connection)

    assert found.creates == ("made",)


def test_a_check_without_broker_raises_a_transport_error(tmp_path: Any) -> None:
    connection = DefaultCluster("127.0.0.1:1")
    use = topic("t", format="text")
    with pytest.raises(TransportError):
        check_topics([plan(tmp_path, connection, use, use)], connection)
