"""`headrace topic create --replicas NUMBER`, which Kafka's tool calls `--replication-factor`."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from headrace.cli import main
from headrace.testing.cluster.cluster import Cluster


@pytest.mark.parametrize("option", ["--replicas", "--replication-factor"])
def test_a_topic_has_as_many_replicas_as_the_command_says(option: str) -> None:
    with Cluster(2) as cluster:

        def create(name: str, replicas: str):
            arguments = ["topic", "create", name, option, replicas, "-b", cluster.bootstrap]
            return CliRunner().invoke(main, arguments)

        found = create("twice", "2")
        assert found.exit_code == 0, found.output
        assert sorted(cluster.replicas("twice")) == [1, 2]
        refused = create("thrice", "3")
        assert refused.exit_code == 1
        assert "the number of registered brokers is 2" in refused.output
