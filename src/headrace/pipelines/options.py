"""Convert topics of pipelines to options of `format("headrace")`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from headrace.pipelines.declaration import Topic
from headrace.pipelines.plan import DefaultCluster
from headrace.spark.options.declared import option_names
from headrace.spark.options.reader import BOOTSTRAP
from headrace.spark.options.selection import SELECTION_OPTIONS
from headrace.spark.options.sink import SINK_OPTIONS
from headrace.spark.options.source import SOURCE_OPTIONS

DECODED: Final = frozenset({"json", "avro", "protobuf"})
_SELECTIONS: Final = frozenset(map(str.lower, option_names(SELECTION_OPTIONS)))
_OF_READS: Final = frozenset(map(str.lower, option_names(SOURCE_OPTIONS)))
_OF_WRITES: Final = frozenset(map(str.lower, option_names(SINK_OPTIONS)))


def decodes(topic: Topic) -> bool:
    """Return whether a source decodes values to the columns of a schema."""
    return topic.format in DECODED and topic.schema is not None


def selects(topic: Topic) -> bool:
    """Return whether a source's options select what is read, in place of the topic's name."""
    return any(name.lower() in _SELECTIONS for name in topic.options)


def is_elsewhere(topic: Topic) -> bool:
    """Return whether a topic's options name another cluster."""
    return any(name.lower() == BOOTSTRAP for name in topic.options)


def source_options_of(topic: Topic, group: str, connection: DefaultCluster) -> dict[str, str]:
    """Return the options with which a topic is read."""
    given = _without(topic.options, _OF_WRITES - _OF_READS)
    options = {
        "startingOffsets": topic.starting,
        "group": group,
        "kafka.isolation.level": "read_committed",  # other pipelines write transactions
    }
    if not selects(topic):
        options["subscribe"] = topic.name
    if decodes(topic):
        assert topic.schema is not None
        options |= {"format": topic.format, "schema": topic.schema, "onError": topic.on_error}
    if topic.include or decodes(topic):
        options["columns"] = ",".join(dict.fromkeys([*topic.include, "value"]))
    return connection.options({**options, **given})


def sink_options_of(topic: Topic, connection: DefaultCluster) -> dict[str, str]:
    """Return the options with which a topic is written."""
    given = _without(topic.options, _OF_READS - _OF_WRITES)
    return connection.options({"topic": topic.name, **given})


def batch_sink_options_of(
    topic: Topic, connection: DefaultCluster, app_id: str, batch_id: int
) -> dict[str, str]:
    """Return the options with which a batch is written exactly once, unless `delivery` is `at_least_once`."""
    options = sink_options_of(topic, connection)
    chosen = {name.lower(): value.lower() for name, value in options.items()}
    if chosen.get("delivery") == "at_least_once":
        return options
    return {**options, "txnAppId": app_id, "txnVersion": str(batch_id)}


def _without(options: Mapping[str, str], others: frozenset[str]) -> dict[str, str]:
    """Remove options of the topic's other role. Unknown names stay, so that they are rejected."""
    return {name: value for name, value in options.items() if name.lower() not in others}
