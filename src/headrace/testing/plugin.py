"""The pytest plugin: fixtures of brokers, topics, clients, fakes of AWS. `pytest --fixtures` shows them.

pytest loads this module wherever Headrace is installed. So it imports only the functions that create fixtures.
"""

from __future__ import annotations

import pytest

from headrace.testing import factories
from headrace.testing.factories import OPTION
from headrace.testing.isolation import Isolation

headrace_broker = factories.broker()
headrace_broker_proc = factories.broker_proc()
headrace_cluster = factories.cluster()
headrace_broker_noproc = factories.broker_noproc()
headrace_bootstrap = factories.bootstrap()
headrace_topic = factories.topic()
headrace_admin = factories.admin()
headrace_client = factories.client()
headrace_aws = factories.aws()
headrace_kinesis = factories.kinesis()
headrace_stream = factories.stream()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option with the address of a cluster."""
    parser.getgroup("headrace").addoption(
        OPTION,
        metavar="HOST:PORT",
        default=None,
        help="a Kafka cluster for headrace_bootstrap, headrace_topic, headrace_admin and headrace_client, "
        "in place of the broker in the test's process",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Declare the marks, and register the isolation of tests."""
    config.pluginmanager.register(Isolation(config), "headrace-isolation")
    config.addinivalue_line(
        "markers",
        "headrace_topic(partitions=1, **options): how headrace_topic is created, see headrace.Admin.create_topic",
    )
    config.addinivalue_line("markers", "headrace_stream(shards=1): how headrace_stream is created")
