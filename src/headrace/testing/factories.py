"""Functions that create fixtures, for a conftest.py that needs more brokers, topics or clients than the plugin has.

    from headrace.testing import factories

    small_broker = factories.broker(configs={"message.max.bytes": "1000"}, scope="module")
    small_topic = factories.topic("small_broker", partitions=3)
    small_client = factories.client("small_broker")

The plugin uses the same functions. Arguments name a broker by its fixture. The default, None, is the cluster of
`--headrace-bootstrap` if the option is given; otherwise `headrace_broker`.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal

import pytest

from headrace.testing.isolation import OPEN_BROKERS

if TYPE_CHECKING:
    from headrace.clients.admin.blocking import Admin
    from headrace.clients.drivers import Target
    from headrace.config.options import Value
    from headrace.embedded.clock import Clock
    from headrace.testing.broker import Broker
    from headrace.testing.clients import Clients
    from headrace.testing.cluster.cluster import Cluster
    from headrace.testing.kinesis.aws import FakeAws
    from headrace.testing.kinesis.machine import FakeKinesis
    from headrace.testing.process import BrokerProcess

Scope = Literal["session", "package", "module", "class", "function"]

OPTION: Final = "--headrace-bootstrap"

_LONGEST_NAME: Final = 100


class ExternalBroker:
    """A cluster that runs outside of the tests.

    Attributes:
        bootstrap: HOST:PORT for clients, or several separated by commas.
        properties: Further properties for Headrace's clients, such as security settings.
    """

    def __init__(self, bootstrap: str, properties: Mapping[str, Any] | None = None) -> None:
        self.bootstrap = bootstrap
        self.properties = dict(properties or {})


def broker(
    *,
    scope: Scope = "session",
    configs: Mapping[str, Value] | None = None,
    clock: Callable[[], Clock] | None = None,
) -> Any:
    """Create a fixture of a `headrace.testing.Broker` in memory.

    After each test the faults of the test end, and its topics and groups are deleted. The topics and groups of fixtures
    with a wider scope stay as long as these fixtures; see docs/guides/testing.md.

    Args:
        scope: The scope of the fixture.
        configs: The broker's configuration under Kafka's names.
        clock: A function that returns the broker's clock, such as `ManualClock`.
    """

    @pytest.fixture(scope=scope)
    def made(request: pytest.FixtureRequest) -> Iterator[Broker]:
        """A Kafka broker in this process, see `headrace.testing.Broker`."""
        from headrace.testing.broker import Broker

        opened = request.config.stash.setdefault(OPEN_BROKERS, [])
        with Broker(configs=configs, clock=clock() if clock else None) as running:
            opened.append(running)
            yield running
            opened.remove(running)

    return made


def cluster(
    brokers: int = 3,
    *,
    racks: Sequence[str] | None = None,
    configs: Mapping[str, Value] | None = None,
    scope: Scope = "function",
    **options: Any,
) -> Any:
    """Create a fixture of a started `headrace.testing.Cluster`.

    With a scope wider than "function", tests share the topics and groups, and the brokers that a test has killed stay
    down.

    Args:
        brokers: The number of brokers.
        racks: The rack of each broker. None is no racks.
        configs: The configuration of all brokers under Kafka's names.
        scope: The scope of the fixture.
        options: Further arguments of `headrace.testing.Cluster`, such as `session_timeout_ms`.
    """

    @pytest.fixture(scope=scope)
    def made() -> Iterator[Cluster]:
        """Kafka brokers in this process, which a test can kill, pause and cut off, see `headrace.testing.Cluster`."""
        from headrace.testing.cluster.cluster import Cluster

        with Cluster(brokers, racks=racks, configs=configs, **options) as running:
            yield running

    return made


def broker_proc(*, scope: Scope = "function", configs: Mapping[str, Value] | None = None) -> Any:
    """Create a fixture of a started `headrace.testing.BrokerProcess`.

    Args:
        scope: The scope of the fixture.
        configs: The broker's configuration under Kafka's names.
    """

    @pytest.fixture(scope=scope)
    def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
        """A Kafka broker in a process of its own, which a test can kill, see `headrace.testing.BrokerProcess`."""
        from headrace.testing.process import BrokerProcess

        with BrokerProcess(tmp_path_factory.mktemp("broker"), configs=configs) as running:
            yield running

    return made


def broker_noproc(
    bootstrap: str | None = None,
    *,
    properties: Mapping[str, Any] | None = None,
    scope: Scope = "session",
) -> Any:
    """Create a fixture of a cluster that runs outside of the tests. Without an address the tests are skipped.

    Args:
        bootstrap: HOST:PORT. None is the address in `--headrace-bootstrap`.
        properties: Properties for the clients that the fixtures create, such as `security.protocol`.
        scope: The scope of the fixture.
    """

    @pytest.fixture(scope=scope)
    def made(request: pytest.FixtureRequest) -> ExternalBroker:
        """A Kafka cluster that runs outside of the tests; `bootstrap` is its address."""
        address = bootstrap or request.config.getoption(OPTION)
        if address is None:
            pytest.skip(f"the test needs a cluster: pass {OPTION}=HOST:PORT")
        return ExternalBroker(address, properties)

    return made


def bootstrap(broker: str | None = None, *, scope: Scope = "session") -> Any:
    """Create a fixture of the address HOST:PORT, for any Kafka client.

    Args:
        broker: The name of the broker's fixture.
        scope: The scope of the fixture.
    """

    @pytest.fixture(scope=scope)
    def made(request: pytest.FixtureRequest) -> str:
        """HOST:PORT of the broker, for any Kafka client."""
        address: str = _of(request, broker).bootstrap
        return address

    return made


def topic(
    broker: str | None = None,
    *,
    partitions: int = 1,
    scope: Scope = "function",
    **options: Any,
) -> Any:
    """Create a fixture of the name of a topic, which the fixture creates and deletes.

    Args:
        broker: The name of the broker's fixture.
        partitions: The number of partitions. A test overrides it with `@pytest.mark.headrace_topic(partitions=3)`.
        scope: The scope of the fixture.
        **options: Further arguments for `Admin.create_topic`, such as `configs` and `serde`. The mark has them, too.
    """

    @pytest.fixture(scope=scope)
    def made(request: pytest.FixtureRequest) -> Iterator[str]:
        """The name of a topic for this test only."""
        from headrace.clients.admin.blocking import Admin

        mark = request.node.get_closest_marker("headrace_topic")
        wanted = {"partitions": partitions, **options, **(mark.kwargs if mark else {})}
        name = unique_name(request.node.name)
        found = _of(request, broker)
        with Admin(_target(found), **_properties(found)) as admin:
            admin.create_topic(name, **wanted)
            yield name
            if name in admin.topics():
                admin.delete_topic(name)

    return made


def admin(broker: str | None = None, *, scope: Scope = "function") -> Any:
    """Create a fixture of a `headrace.Admin`.

    Args:
        broker: The name of the broker's fixture.
        scope: The scope of the fixture.
    """

    @pytest.fixture(scope=scope)
    def made(request: pytest.FixtureRequest) -> Iterator[Admin]:
        """A `headrace.Admin` of the broker."""
        from headrace.clients.admin.blocking import Admin

        found = _of(request, broker)
        with Admin(_target(found), **_properties(found)) as connected:
            yield connected

    return made


def client(broker: str | None = None, *, scope: Scope = "function") -> Any:
    """Create a fixture of a `headrace.testing.Clients`, which creates producers and consumers and closes them.

    Args:
        broker: The name of the broker's fixture.
        scope: The scope of the fixture.
    """

    @pytest.fixture(scope=scope)
    def made(request: pytest.FixtureRequest) -> Iterator[Clients]:
        """Headrace's producers and consumers of the broker, see `headrace.testing.Clients`."""
        from headrace.testing.clients import Clients

        found = _of(request, broker)
        with Clients(_target(found), **_properties(found)) as clients:
            yield clients

    return made


def aws(*, scope: Scope = "function", **options: Any) -> Any:
    """Create a fixture of a `headrace.testing.FakeAws` that runs in a thread of its own.

    Args:
        scope: The scope of the fixture.
        **options: Further arguments for `FakeAws`, such as `limits`, `transition_ms` and `shard_end`.
    """

    @pytest.fixture(scope=scope)
    def made() -> Iterator[FakeAws]:
        """Fakes of Kinesis and DynamoDB on a free port, see `headrace.testing.FakeAws`."""
        from headrace.testing.kinesis.aws import FakeAws

        with FakeAws(**options) as running:
            yield running

    return made


def kinesis(aws: str = "headrace_aws", *, scope: Scope = "function") -> Any:
    """Create a fixture of the `headrace.testing.FakeKinesis` in a fake of AWS.

    Args:
        aws: The name of the fixture of the fake.
        scope: The scope of the fixture.
    """

    @pytest.fixture(scope=scope)
    def made(request: pytest.FixtureRequest) -> FakeKinesis:
        """The Kinesis of `headrace_aws`, see `headrace.testing.FakeKinesis`."""
        found: FakeKinesis = request.getfixturevalue(aws).kinesis
        return found

    return made


def stream(aws: str = "headrace_aws", *, shards: int = 1, scope: Scope = "function") -> Any:
    """Create a fixture of the name of a stream, which the fixture creates.

    Args:
        aws: The name of the fixture of the fake of AWS.
        shards: The number of shards. A test overrides it with `@pytest.mark.headrace_stream(shards=2)`.
        scope: The scope of the fixture.
    """

    @pytest.fixture(scope=scope)
    def made(request: pytest.FixtureRequest) -> str:
        """The name of a stream for this test only."""
        mark = request.node.get_closest_marker("headrace_stream")
        wanted = {"shards": shards, **(mark.kwargs if mark else {})}
        name = unique_name(request.node.name)
        request.getfixturevalue(aws).kinesis.create_stream(name, **wanted)
        return name

    return made


def unique_name(title: str) -> str:
    """Return a unique name that begins with a title."""
    readable = re.sub(r"[^\w.-]+", "-", title, flags=re.ASCII).strip("-.") or "topic"
    return f"{readable[:_LONGEST_NAME]}-{uuid.uuid4().hex[:12]}"


def _of(request: pytest.FixtureRequest, name: str | None) -> Any:
    """Return the broker of the fixture with a name."""
    if name is None:
        given = request.config.getoption(OPTION) is not None
        name = "headrace_broker_noproc" if given else "headrace_broker"
    return request.getfixturevalue(name)


def _target(found: Any) -> Target:
    """Return the target for Headrace's clients: a broker in this process itself, or the address of another broker."""
    from headrace.testing.broker import Broker

    return found if isinstance(found, Broker) else str(found.bootstrap)


def _properties(found: Any) -> dict[str, Any]:
    """Return the properties for clients. An `ExternalBroker` and a `Cluster` have them."""
    properties: dict[str, Any] = getattr(found, "properties", {})
    return properties
