"""Settings that programs give as arguments: workers, Kinesis, pipelines and Spark."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import headrace
from headrace.kinesis import AwsSettings, ProducerSettings, kinesis
from headrace.kinesis.reading.settings import ReadSettings
from headrace.pipelines import for_each_batch, pipeline, table, topic
from tools.reference.client_settings import arguments_table
from tools.reference.declared import Declared, arguments_of, fields_of

WORKERS_HEAD: Final = """\
# Settings of workers

The arguments of `headrace.App` and its decorators. [Workers](../guides/workers.md) explains them with examples. Every
worker can also have [properties of a consumer](settings-clients.md#consumers), as further keyword arguments of
`App.worker`. A setting cannot change while the app runs.
"""
KINESIS_HEAD: Final = """\
# Settings of Kinesis consumers and producers

The arguments of `headrace.kinesis`. [Kinesis](../guides/kinesis.md) explains them with examples. A setting cannot
change after the object was created.
"""
PIPELINES_HEAD: Final = """\
# Settings of pipelines

The arguments of `headrace.pipelines`. [Pipelines](../guides/pipelines.md) explains them with examples. The options of
`format("headrace")` are in [Spark options](spark-options.md), those of `format("headrace-kinesis")` in
[PySpark and Kinesis](../guides/spark-kinesis.md#options), and those of `headrace archive` in
[commands](cli.md#headrace-archive-run). A setting cannot change while a pipeline runs.
"""


def workers_page() -> str:
    """Return the page of workers' settings."""
    return WORKERS_HEAD + "".join(
        [
            _arguments("`headrace.App`", headrace.App.__init__),
            _arguments("`@app.worker`", headrace.App.worker),
            _arguments("`@app.publishes`", headrace.App.publishes),
            _section("`headrace.Retry`", fields_of(headrace.Retry)),
            _section("`headrace.SeenTopic`", fields_of(headrace.SeenTopic)),
            _section("`headrace.SeenFile`", fields_of(headrace.SeenFile)),
        ]
    )


def kinesis_page() -> str:
    """Return the page of the settings of Kinesis."""
    return KINESIS_HEAD + "".join(
        [
            _arguments("`kinesis()`", kinesis),
            _section("Reading: further arguments of `kinesis()`", fields_of(ReadSettings)),
            _section("`AwsSettings`", fields_of(AwsSettings)),
            _section("`ProducerSettings`", fields_of(ProducerSettings)),
        ]
    )


def pipelines_page() -> str:
    """Return the page of the settings of pipelines."""
    return PIPELINES_HEAD + "".join(
        [
            _arguments("`@pipeline`", pipeline),
            _arguments("`topic()`", topic),
            _arguments("`table()`", table),
            _arguments("`for_each_batch()`", for_each_batch),
        ]
    )


def _arguments(title: str, function: Callable[..., Any]) -> str:
    return _section(title, arguments_of(function))


def _section(title: str, rows: list[Declared]) -> str:
    return f"\n## {title}\n\n{arguments_table(rows)}"
