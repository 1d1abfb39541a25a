"""One Spark session and one server for all tests of this folder; each test has topics of its own."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace.clients.blocking import BlockingClient, NewTopic
from headrace.errors import ApiError, ConfigError, ErrorCode
from headrace.records.builder import build_batch
from headrace.spark.java import check_java
from headrace.spark.session import local_session, stop_session
from headrace.types import TopicPartition
from tests.fixtures.spark_connector import ConnectorUnavailableError, connector_jars
from tests.fixtures.targets import Target, make_target

# pandas is installed only because the flights' package depends on it. No test uses it through PySpark.
PANDAS_WARNING = "ignore:PySpark does not yet fully support pandas:FutureWarning"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.spark)
            item.add_marker(pytest.mark.filterwarnings(PANDAS_WARNING))


@pytest.fixture(scope="session")
def jars() -> list[Path] | str:
    """The jars of Spark's own connector; if there are none, the reason."""
    try:
        return connector_jars()
    except ConnectorUnavailableError as error:
        return str(error)


@pytest.fixture(scope="session")
def spark(jars: list[Path] | str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    try:
        check_java()
    except ConfigError as error:
        pytest.skip(str(error))
    home = tmp_path_factory.mktemp("spark")
    session = local_session(
        "headrace-tests",
        {
            "spark.jars": "" if isinstance(jars, str) else ",".join(map(str, jars)),
            "spark.sql.warehouse.dir": str(home / "warehouse"),
            "spark.local.dir": str(home / "local"),
        },
    )
    yield session
    stop_session(session)


@pytest.fixture(autouse=True)
def active_session(request: pytest.FixtureRequest) -> Iterator[None]:
    """Make the shared session the active one again, because Spark looks up registered data sources in it."""
    yield
    if "spark" in request.fixturenames:
        session = request.getfixturevalue("spark")
        type(session)._activeSession = session
        session._get_j_spark_session_class(session._jvm).setActiveSession(session._jsparkSession)


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    """The server under test: Headrace, or with CONFORMANCE_TARGET=kafka Apache Kafka."""
    target = make_target(
        os.environ.get("CONFORMANCE_TARGET", "headrace"), tmp_path_factory.mktemp("server")
    )
    target.start()
    yield target
    target.stop()


@pytest.fixture(scope="session")
def client(server: Target) -> Iterator[BlockingClient]:
    with BlockingClient(server.bootstrap) as connected:
        yield connected


class Topics:
    """Creates topics and reads their records without Spark."""

    def __init__(self, client: BlockingClient, bootstrap: str) -> None:
        self.client = client
        self.bootstrap = bootstrap

    def create(self, partitions: int = 1, name: str | None = None, **configs: str) -> str:
        name = name or f"topic-{uuid.uuid4().hex[:12]}"
        # Retention counts the records' own time, which is long ago, so it is off.
        dotted = {
            key.replace("_", "."): value for key, value in {"retention_ms": "-1", **configs}.items()
        }
        (error,) = self.client.create_topics(
            [NewTopic(name, partitions, 1, configs=dotted)]
        ).values()
        if error is not None:
            raise error
        return name

    def delete(self, name: str) -> None:
        (error,) = self.client.delete_topics([name]).values()
        if error is not None:
            raise error

    def create_again(self, name: str) -> str:
        """Create a topic that was just deleted. Some brokers need a moment for the deletion."""
        deadline = time.monotonic() + 20
        while True:
            try:
                return self.create(name=name)
            except ApiError as error:
                if error.code is not ErrorCode.TOPIC_ALREADY_EXISTS or time.monotonic() > deadline:
                    raise


@pytest.fixture
def topics(client: BlockingClient, server: Target) -> Topics:
    return Topics(client, server.bootstrap)


class Reader:
    """Short forms for reading with the source under test."""

    def __init__(self, spark: Any, bootstrap: str) -> None:
        self.spark = spark
        self.bootstrap = bootstrap

    def batch(self, topic: str, source: str = "headrace", **options: Any) -> Any:
        return self._with(self.spark.read.format(source), topic, options).load()

    def stream(self, topic: str, source: str = "headrace", **options: Any) -> Any:
        return self._with(self.spark.readStream.format(source), topic, options).load()

    def _with(self, builder: Any, topic: str, options: dict[str, Any]) -> Any:
        if "assign" not in options and "subscribePattern" not in options:
            options = {"subscribe": topic, **options}
        builder = builder.option("kafka.bootstrap.servers", self.bootstrap)
        for name, value in options.items():
            builder = builder.option(name.replace("__", "."), value)
        return builder


@pytest.fixture
def read(spark: Any, server: Target) -> Reader:
    return Reader(spark, server.bootstrap)


def run_available(stream: Any, checkpoint: Path, sink: Path) -> Any:
    """Run a stream over the present records, and append (topic, partition, offset, value) to `sink`."""
    query = (
        stream.selectExpr("topic", "partition", "offset", "CAST(value AS STRING) AS value")
        .writeStream.format("parquet")
        .option("checkpointLocation", str(checkpoint))
        .option("path", str(sink))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination(120)
    assert not query.isActive, "the stream did not end"
    if query.exception() is not None:
        raise query.exception()
    return query


def sunk(spark: Any, sink: Path) -> list[tuple[Any, ...]]:
    """Return the rows that streams have written, sorted."""
    return sorted(tuple(row) for row in spark.read.parquet(str(sink)).collect())


def produce_values(
    client: BlockingClient, topic: str, partition: int, values: Iterable[int]
) -> None:
    """Append one batch whose records have the numbers as values."""
    records = [(None, b"%d" % value, (), 1_700_000_000_000 + value) for value in values]
    client.produce(TopicPartition(topic, partition), build_batch(records))
