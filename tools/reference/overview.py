"""The page that says where settings are given, with a list of all of them."""

from __future__ import annotations

import inspect
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import fields
from typing import Final

from headrace import App, Retry, SeenFile, SeenTopic, aio
from headrace.clients.config import ALIASES, ClientConfig, ConsumerConfig, ProducerConfig
from headrace.clients.security import JAVA_ONLY
from headrace.config.broker import BROKER_ALIASES, BROKER_OPTIONS
from headrace.config.group import GROUP_OPTIONS
from headrace.config.topic import TOPIC_OPTIONS
from headrace.kinesis import AwsSettings, ProducerSettings, kinesis
from headrace.kinesis.reading.settings import ReadSettings
from headrace.pipelines import for_each_batch, pipeline, topic
from headrace.pipelines import table as pipeline_table
from headrace.spark.kinesis.options import READ_OPTIONS
from headrace.spark.kinesis.sink import WRITE_OPTIONS
from headrace.spark.options.declared import option_names
from headrace.spark.options.sink import SINK_OPTIONS
from headrace.spark.options.source import SOURCE_OPTIONS
from tools.reference.markdown import code, table

HEAD: Final = """\
# Settings

Every setting of Headrace, with the place where it is given. The pages in the column "page" have the type, the
default, the accepted values and the meaning of each setting. They are generated from the code.

"""
BELOW: Final = """\

Bounds that no setting changes are in [limits.md](limits.md).

## Where a broker takes its settings from

If a setting is given in several places, the first place in this list counts:

1. `--config NAME=VALUE` on the command line, once for each setting. `--listen`, `--data` and `--durability` are short
   forms of `listeners`, `log.dirs` and `durability`.
2. An environment variable, as in the official container image of Kafka: `KAFKA_` and the name in capitals, with `_` for
   a dot, `__` for `_` and `___` for a hyphen. `KAFKA_NUM_PARTITIONS=3` sets `num.partitions=3`. The broker ignores
   other variables that begin with `KAFKA_`; it logs a variable whose name is similar to a setting.
3. The file of `--config-file`: a `server.properties` of Kafka, or TOML.

Settings of a KRaft controller in the same `server.properties`, also in `listeners` and `advertised.listeners`, are
ignored.

## Units

| the name ends with | plain number | other forms |
| --- | --- | --- |
| `.ms` | milliseconds | a duration |
| `.seconds`, `.minutes`, `.hours` | seconds, minutes, hours | a duration that is a whole number of the unit |
| `.bytes` | bytes | a size |

A duration is one number or several, each with one of the units `ms`, `s`, `m`, `h` and `d`: `500ms`, `90s`,
`2h30m`, `7d`. A size is a number with `K`, `M`, `G` or `T`, with or without `B` or `iB`: `64MiB`, `1G`. Sizes count
in steps of 1024. Brokers, topics, groups, `Admin`, `Broker` and the commands accept these forms. Keyword arguments
of Python take plain numbers; their names end with `_ms` (milliseconds), `_s` (seconds) or `_bytes`.

## Environment variables

"""
SCOPES: Final = (
    ("broker", "`headrace serve`: option, environment or file; see below", "if marked dynamic", "settings-broker.md"),
    ("listener", "`listener.name.<name>.<setting>`, in the same places", "no", "settings-broker.md"),
    ("topic", "`headrace topic create -c NAME=VALUE`, `headrace topic alter`, `Admin`", "yes", "settings-topic.md"),
    ("group", "`headrace group config`, `headrace group attach`, `Admin`", "yes", "settings-group.md"),
    ("client", "an argument of `Producer`, `Consumer`, `Admin`; `-X` of a command", "no", "settings-clients.md"),
    ("worker", "an argument of `headrace.App` or of its decorators", "no", "settings-workers.md"),
    ("Kinesis", "an argument of `kinesis()` or of the producer", "no", "settings-kinesis.md"),
    ("pipeline", "an argument of `@pipeline`, `topic()`, `table()`", "no", "settings-pipelines.md"),
    ("Spark", "an option of a read or a write", "no", "spark-options.md"),
    ("command", "an option of the command, or the environment", "-", "cli.md"),
)  # fmt: skip
"""Scopes of settings: where a setting is given, whether it can change later, and the page."""
VARIABLES: Final = (
    ("KAFKA_*", "`serve`, `dev`", "A setting of the broker; see above."),
    ("HEADRACE_BOOTSTRAP", "commands", "The brokers to connect to first: `HOST:PORT`, several with commas between."),
    ("HEADRACE_CONTEXT", "commands", "The name of the connection to use; see `headrace context`."),
    ("HEADRACE_CLIENT_CONFIG", "commands", "A file of client properties."),
    ("HEADRACE_PASSWORD", "`headrace user`", "The password of the user; arguments are visible to other users."),
    ("HEADRACE_PIPELINES", "`headrace pipeline`", "The directory in which running pipelines record their state."),
    ("HEADRACE_CHECKPOINTS", "`headrace pipeline`", "The directory with the checkpoints of pipelines."),
    ("HEADRACE_ARCHIVE_CATALOG", "`headrace archive`", "The URI of the Iceberg catalog."),
    ("HEADRACE_LEASES", "`headrace kinesis`", "The lease table of the groups that read Kinesis streams."),
    (
        "HEADRACE_SCHEMA_REGISTRIES",
        "clients, workers",
        "The URLs of schema registries that a topic's metadata may name, with commas between.",
    ),
    ("HEADRACE_ACCEL", "all programs", "`0` switches the accelerator in C off."),
    ("AWS_*", "Kinesis", "Region, credentials and profile, as for every AWS program."),
)  # fmt: skip
"""Environment variables, who reads each, and what it says."""
PAGE_OF: Final = {
    "broker": "settings-broker.md",
    "topic": "settings-topic.md",
    "group": "settings-group.md",
    "client": "settings-clients.md",
    "producer": "settings-clients.md#producers",
    "consumer": "settings-clients.md#consumers",
    "worker": "settings-workers.md",
    "Kinesis": "settings-kinesis.md",
    "pipeline": "settings-pipelines.md",
    "Spark": "spark-options.md",
    "Spark with Kinesis": "../guides/spark-kinesis.md#options",
}
"""The page of each scope."""


def overview_page() -> str:
    """Return the page of all settings."""
    text = HEAD + table(
        ("scope", "where the setting is given", "can it change later?", "page"),
        (
            (*cells, f"[{page.rpartition('/')[2].partition('#')[0]}]({page})")
            for *cells, page in SCOPES
        ),
    )
    text += BELOW + table(
        ("variable", "read by", "meaning"),
        ((code(name), reader, meaning) for name, reader, meaning in VARIABLES),
    )
    rows = [
        (code(name), ", ".join(f"[{scope}]({PAGE_OF[scope]})" for scope in scopes))
        for name, scopes in sorted(all_settings().items())
    ]
    return f"{text}\n## All settings\n\n{table(('setting', 'scope'), rows)}"


def all_settings() -> dict[str, list[str]]:
    """Return the scopes of every setting."""
    found: dict[str, list[str]] = defaultdict(list)
    for scope, names in (*_server_settings(), *_client_settings(), *_program_settings()):
        for name in dict.fromkeys(names):
            if name not in {"self", "properties", "options"} and scope not in found[name]:
                found[name].append(scope)
    return found


def _server_settings() -> Iterator[tuple[str, Iterable[str]]]:
    yield "broker", (*BROKER_OPTIONS, *BROKER_ALIASES)
    yield "topic", TOPIC_OPTIONS
    yield "group", GROUP_OPTIONS


def _client_settings() -> Iterator[tuple[str, Iterable[str]]]:
    general = {_dotted(each.name) for each in fields(ClientConfig)}
    yield "client", (*general, *JAVA_ONLY, *_other_names(general))
    for scope, owner, client in (
        ("producer", ProducerConfig, aio.Producer),
        ("consumer", ConsumerConfig, aio.Consumer),
    ):
        names = {_dotted(each.name) for each in fields(owner)} - general
        yield scope, (*names, *_other_names(names))
        arguments = inspect.signature(client).parameters
        yield scope, (each for each in arguments if _dotted(each) not in names | general)


def _other_names(names: set[str]) -> list[str]:
    return [other for other, name in ALIASES.items() if name in names]


def _program_settings() -> Iterator[tuple[str, Iterable[str]]]:
    for scope, functions, classes in (
        ("worker", (App.__init__, App.worker, App.publishes), (Retry, SeenTopic, SeenFile)),
        ("Kinesis", (kinesis,), (ReadSettings, AwsSettings, ProducerSettings)),
        ("pipeline", (pipeline, topic, pipeline_table, for_each_batch), ()),
    ):
        for function in functions:
            yield scope, inspect.signature(function).parameters
        for owner in classes:
            yield scope, (each.name for each in fields(owner))
    yield "Spark", option_names((*SOURCE_OPTIONS, *SINK_OPTIONS))
    yield "Spark with Kinesis", (*READ_OPTIONS, *WRITE_OPTIONS)


def _dotted(name: str) -> str:
    return name.replace("_", ".")
