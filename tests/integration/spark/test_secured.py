"""A topic of a broker with TLS and SASL is written and read, and descriptions of the query have no secret."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import AnalysisException

import headrace
from tests.fixtures.certificates import make_certificates
from tests.fixtures.secured_headrace import SecuredHeadrace
from tests.fixtures.secured_kafka import PASSWORD, USER

MODULE = "org.apache.kafka.common.security.scram.ScramLoginModule"


@pytest.fixture(scope="module")
def options(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    directory = tmp_path_factory.mktemp("secured")
    certificates = make_certificates(directory / "certificates")
    server = SecuredHeadrace(directory / "node", certificates)
    server.start()
    try:
        with headrace.Admin(server.bootstraps["PLAINTEXT"]) as admin:
            admin.create_topic("t", 1)
            admin.create_topic("copy", 1)
        yield {
            "kafka.bootstrap.servers": server.bootstraps["SASL_SSL"],
            "kafka.security.protocol": "SASL_SSL",
            "kafka.ssl.ca.location": str(certificates.authority),
            "kafka.sasl.mechanism": "SCRAM-SHA-256",
            "kafka.sasl.jaas.config": f'{MODULE} required username="{USER}" password="{PASSWORD}";',
        }
    finally:
        server.stop()


def test_a_secured_cluster_serves_authorized_queries_only(
    spark: Any, options: dict[str, str], tmp_path: Path
) -> None:
    rows = spark.createDataFrame([("k", "v")], ["key", "value"])
    rows.write.format("headrace").options(**options).option("topic", "t").mode("append").save()

    table = spark.read.format("headrace").options(**options).option("subscribe", "t").load()
    assert [row.value for row in table.collect()] == [b"v"]
    assert PASSWORD not in table._jdf.queryExecution().toString()

    stream = spark.readStream.format("headrace").options(**options)
    stream = stream.option("subscribe", "t").option("startingOffsets", "earliest").load()
    writer = stream.select("value").writeStream.format("headrace").options(**options)
    writer = writer.option("topic", "copy").trigger(availableNow=True)
    query = writer.option("checkpointLocation", str(tmp_path)).start()
    assert query.awaitTermination(120)
    assert query.exception() is None
    assert PASSWORD not in query._jsq.lastProgress().json()
    assert PASSWORD not in query._jsq.explainInternal(True)  # noqa: FBT003 - Java has no names of arguments
    kept = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    assert not [content for content in kept if PASSWORD.encode() in content]

    copy = spark.read.format("headrace").options(**options).option("subscribe", "copy").load()
    assert [row.value for row in copy.collect()] == [b"v"]

    entry = options["kafka.sasl.jaas.config"].replace(PASSWORD, "not this one")
    wrong = {**options, "kafka.sasl.jaas.config": entry, "subscribe": "t"}
    refused = spark.read.format("headrace").options(**wrong).load()
    with pytest.raises(AnalysisException) as caught:
        refused.collect()
    assert "refuses the login" in str(caught.value)
    assert "not this one" not in str(caught.value)
