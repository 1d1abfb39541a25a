"""`headrace spark`: options and packages with which Spark reads and writes topics."""

from __future__ import annotations

from typing import Any, Final

import click

from headrace.cli.arguments.options import bootstrap_option, format_option
from headrace.cli.command_group import command
from headrace.cli.output.printing import guarded, print_json

SETTINGS: Final = {
    "spark.sql.execution.arrow.maxRecordsPerBatch": "10000",
    "spark.python.unix.domain.socket.enabled": "true",
}
"""Recommended settings of a Spark session, from measurements of the source."""
_ATTEMPTS: Final = "local[2,4]"


@command("spark")
@bootstrap_option("The brokers for the examples. The command does not contact them.")
@click.option("--topic", default="TOPIC", show_default=True, help="The topic for the examples.")
@format_option
@guarded
def spark(*, bootstrap: str, topic: str, output_format: str) -> None:
    """Print options, settings and Maven coordinates for the PySpark that is installed here.

    `headrace doctor spark` checks whether they work.
    """
    facts = _facts(bootstrap, topic)
    if output_format == "json":
        print_json(facts)
    else:
        click.echo(_text(facts))


def _facts(bootstrap: str, topic: str) -> dict[str, Any]:
    from headrace.spark.versions import (
        connector_coordinates,
        scala_version,
        spark_version,
    )

    cluster = {"kafka.bootstrap.servers": bootstrap}
    return {
        "pyspark": spark_version(),
        "scala": scala_version(),
        "headrace": {
            "format": "headrace",
            "packages": [],
            "settings": SETTINGS,
            "read_options": {**cluster, "subscribe": topic},
            "write_options": {**cluster, "topic": topic},
        },
        "connector": {
            "format": "kafka",
            "packages": [connector_coordinates()],
            "settings": {"spark.jars.packages": connector_coordinates()},
            "read_options": {
                **cluster,
                "subscribe": topic,
                "kafka.isolation.level": "read_committed",
            },
            "write_options": {**cluster, "topic": topic},
        },
    }


def _text(facts: dict[str, Any]) -> str:
    own, connector = facts["headrace"], facts["connector"]
    return "\n".join(
        [
            f"# PySpark {facts['pyspark']}, Scala {facts['scala']}.",
            "",
            '# format("headrace"): found by Spark itself, no jar. Recommended settings of the session:',
            *(f"{name}={value}" for name, value in own["settings"].items()),
            f'# and local[N,4], as in .master("{_ATTEMPTS}"): a plain local[N] repeats no task.',
            "",
            _reading("headrace", own["read_options"]),
            _writing("headrace", own["write_options"]),
            "",
            "# format(\"kafka\"): Spark's own connector, a jar of exactly Spark's version, from Maven.",
            f"spark-submit --packages {connector['packages'][0]} PROGRAM",
            *(f"{name}={value}" for name, value in connector["settings"].items()),
            "",
            _reading("kafka", connector["read_options"]),
            _writing("kafka", connector["write_options"]),
        ]
    )


def _reading(name: str, options: dict[str, str]) -> str:
    return f'spark.readStream.format("{name}"){_options(options)}.load()'


def _writing(name: str, options: dict[str, str]) -> str:
    given = {**options, "checkpointLocation": "DIRECTORY"}
    return f'frame.writeStream.format("{name}"){_options(given)}.start()'


def _options(options: dict[str, str]) -> str:
    return "".join(f'.option("{name}", "{value}")' for name, value in options.items())
