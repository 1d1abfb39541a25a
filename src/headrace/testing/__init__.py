"""Tools to test programs that use Kafka: brokers in the test's process, faults, and the fixtures of the pytest plugin.

    def test_billing(headrace_broker, headrace_topic):
        bill_everything(headrace_broker.bootstrap, headrace_topic)
        headrace_broker.wait_caught_up("billing")

For programs that use Kinesis, `headrace.testing.kinesis` has fakes of Kinesis and DynamoDB.

Each name is imported when it is first used, because pytest imports this package at every start.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headrace.embedded.clock import ManualClock as ManualClock
    from headrace.protocol.api_keys import ApiKey as ApiKey
    from headrace.testing.broker import Broker as Broker
    from headrace.testing.clients import Clients as Clients
    from headrace.testing.cluster.cluster import Cluster as Cluster
    from headrace.testing.container import HeadraceContainer as HeadraceContainer
    from headrace.testing.container import KafkaContainer as KafkaContainer
    from headrace.testing.contexts import context as context
    from headrace.testing.faults import Fault as Fault
    from headrace.testing.faults import delay as delay
    from headrace.testing.faults import drop_connection as drop_connection
    from headrace.testing.faults import error as error
    from headrace.testing.interception import Exchange as Exchange
    from headrace.testing.kinesis.aws import FakeAws as FakeAws
    from headrace.testing.kinesis.dynamodb.machine import FakeDynamoDB as FakeDynamoDB
    from headrace.testing.kinesis.machine import FakeKinesis as FakeKinesis
    from headrace.testing.process import BrokerProcess as BrokerProcess

_HOMES = {
    "ApiKey": "headrace.protocol.api_keys",
    "Broker": "headrace.testing.broker",
    "BrokerProcess": "headrace.testing.process",
    "Clients": "headrace.testing.clients",
    "Cluster": "headrace.testing.cluster.cluster",
    "Exchange": "headrace.testing.interception",
    "FakeAws": "headrace.testing.kinesis.aws",
    "FakeDynamoDB": "headrace.testing.kinesis.dynamodb.machine",
    "FakeKinesis": "headrace.testing.kinesis.machine",
    "Fault": "headrace.testing.faults",
    "HeadraceContainer": "headrace.testing.container",
    "KafkaContainer": "headrace.testing.container",
    "ManualClock": "headrace.embedded.clock",
    "context": "headrace.testing.contexts",
    "delay": "headrace.testing.faults",
    "drop_connection": "headrace.testing.faults",
    "error": "headrace.testing.faults",
}

__all__ = list(_HOMES)


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used (PEP 562)."""
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'headrace.testing' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(home), name)
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
