"""The page with the options of `format("headrace")`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from headrace.spark.options.declared import Option
from headrace.spark.options.reader import BOOTSTRAP, WITHOUT_EFFECT
from headrace.spark.options.sink import SINK_OPTIONS
from headrace.spark.options.source import SOURCE_OPTIONS
from tools.reference.markdown import code, paragraphs, table

HEAD: Final = f"""\
# Spark options

This page lists the options of `format("headrace")`. [PySpark](../guides/spark.md) is the guide.
[The Spark source in detail](spark-source.md) explains the limits of batches, tasks, lag, checkpoints and lost data.

The option `{BOOTSTRAP}` has the addresses of brokers, HOST:PORT, comma-separated. It is required.

## Reads

"""
WRITES: Final = """
## Writes

"""
CLIENTS: Final = """## Client properties

Further options that begin with `kafka.` are properties of the client by Kafka's names
([client settings](settings-clients.md)).

- Reads, for example: `kafka.isolation.level`, `kafka.max.partition.fetch.bytes` (here 32 MiB, the most bytes that
  a request asks of one partition), `kafka.fetch.max.wait.ms`, `kafka.request.timeout.ms`, `kafka.client.id`.
- Writes, for example: `kafka.compression.type`, `kafka.batch.size`, `kafka.linger.ms`, `kafka.max.request.size`,
  `kafka.transaction.timeout.ms`.

## Differences from Spark's Kafka connector
"""
UNKNOWN: Final = """
Unknown names are errors before anything runs.

Spark drops the options of `CREATE TABLE ... USING headrace OPTIONS (...)`, so that statement is an error.
`CREATE TEMPORARY VIEW` keeps the options. Spark has no column pruning and, by default, no filters for Python sources:
name the columns in `columns`, and set bounds of time or offset with the options above.
"""


def spark_options_page() -> str:
    """Return the page of Spark options."""
    accepted = (
        f"The options {', '.join(map(code, WITHOUT_EFFECT))} are accepted without effect: the source joins no group "
        "and retries by "
        'time. So a query for `format("kafka")` runs with the format\'s name changed, and continues from its '
        "checkpoint. "
        "The reverse does not work: the connector does not read Headrace's checkpoints."
    )
    return (
        HEAD
        + _options(SOURCE_OPTIONS)
        + WRITES
        + _options(SINK_OPTIONS)
        + "\n"
        + CLIENTS
        + "\n"
        + paragraphs(accepted)
        + UNKNOWN
    )


def _options(options: Iterable[Option]) -> str:
    rows = [(code(each.name), each.only_for, _default(each), each.meaning) for each in options]
    return table(("option", "only for", "default", "meaning"), rows)


def _default(option: Option) -> str:
    if option.stream_default:
        return f"{code(option.default)} in batches, {code(option.stream_default)} in streams"
    return code(option.default)
