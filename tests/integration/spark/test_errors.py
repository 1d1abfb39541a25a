"""Errors as users see them: the message, after at most one line of Headrace's source."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from headrace.clients.blocking import BlockingClient
from headrace.spark.errors import short_tracebacks
from headrace.testing.kinesis import FakeAws
from tests.fixtures.targets import Target
from tests.integration.spark.conftest import Topics, produce_values


def is_short(error: PySparkException, words: str) -> None:
    text = str(error)
    assert words in text, text
    frames = re.findall(r'File "[^"]*/headrace/([^"]+)", line', text)
    # Spark repeats the text of the cause in the text of the error.
    assert set(frames) <= {"spark/errors.py"}, text
    assert len(frames) <= len(re.findall(r"headrace\.\S+Error: ", text)), text
    assert "During handling" not in text


def read(spark: SparkSession, server: Target, **options: str) -> Any:
    return (
        spark.read.format("headrace")
        .option("kafka.bootstrap.servers", server.bootstrap)
        .options(**options)
        .load()
    )


def ended(spark: SparkSession, server: Target, folder: Path, **options: str) -> None:
    frame = (
        spark.readStream.format("headrace")
        .option("kafka.bootstrap.servers", server.bootstrap)
        .options(**options)
        .load()
    )
    writer = frame.writeStream.format("noop").option("checkpointLocation", str(folder))
    writer.trigger(availableNow=True).start().awaitTermination()


def test_errors_that_a_user_can_correct_are_short(
    spark: SparkSession, server: Target, topics: Topics, client: BlockingClient, tmp_path: Path
) -> None:
    topic = topics.create()
    produce_values(client, topic, 0, range(3))
    rows = spark.range(1).selectExpr("cast(id as string) value")
    bootstrap = {"kafka.bootstrap.servers": server.bootstrap}
    writer = rows.write.format("headrace").options(**bootstrap)
    decoding = {"format": "json", "schema": "id INT"}
    attempts: dict[str, Callable[[], object]] = {
        "did you mean startingOffsets?": lambda: read(
            spark, server, subscribe=topic, startingOffsts="earliest"
        ),
        "not-there": lambda: read(spark, server, subscribe="not-there").count(),
        "no-such-topic": lambda: ended(spark, server, tmp_path / "a", subscribe="no-such-topic"),
        "cannot be overwritten": lambda: writer.mode("overwrite").option("topic", topic).save(),
        "unknown option topc": lambda: writer.mode("append").option("topc", topic).save(),
        "there are no records to read": lambda: read(
            spark,
            server,
            assign=f'{{"{topic}": [0]}}',
            endingOffsets=f'{{"{topic}": {{"0": 50}}}}',
            startingOffsets=f'{{"{topic}": {{"0": 40}}}}',
        ).count(),
        "does not decode as json": lambda: read(
            spark, server, subscribe=topic, **decoding
        ).collect(),
    }
    for words, attempt in attempts.items():
        with pytest.raises(PySparkException) as error:
            attempt()
        is_short(error.value, words)


def test_errors_of_streams_of_kinesis_are_short(spark: SparkSession) -> None:
    with FakeAws() as aws, pytest.raises(PySparkException) as error:
        spark.read.format("headrace-kinesis").options(
            stream="nowhere",
            endpointUrl=aws.endpoint_url,
            region=aws.region,
            accessKeyId="fake",
            secretAccessKey="fake",
        ).load().count()
    is_short(error.value, "nowhere")


def test_an_internal_error_keeps_its_traceback() -> None:
    @short_tracebacks
    class Reader:
        def read(self) -> Any:
            yield 1
            raise RuntimeError("a fault")

    rows = Reader().read()
    assert next(rows) == 1
    with pytest.raises(RuntimeError) as error:
        next(rows)
    assert [each.name for each in error.traceback][-1] == "read"
