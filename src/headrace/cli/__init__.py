"""The command `headrace`: a table of sub-commands, each imported only when it is called.

Exit codes, the same for every command: 0 done, 1 the work failed, 2 wrong usage or configuration, 130 interrupted.
"""

from __future__ import annotations

import importlib
import os

import click

from headrace import __version__
from headrace.cli._groups import CommandGroup

# command name -> ("module:attribute" of a click command, the line shown by `headrace --help`)
COMMANDS: dict[str, tuple[str, str]] = {
    "serve": ("headrace.cli.serve:serve", "Run a broker that keeps its data in a directory."),
    "dev": ("headrace.cli.dev:dev", "Run a broker in memory, for development and tests."),
    "topic": ("headrace.cli.topic:topic", "Create, list, describe, change and delete topics."),
    "produce": ("headrace.cli.produce:produce", "Write records from standard input."),
    "consume": ("headrace.cli.consume:consume", "Read records to standard output."),
    "group": (
        "headrace.cli.group:group",
        "List, describe, attach, move and delete consumer groups.",
    ),
    "run": ("headrace.cli.run:run", "Run the workers of an app."),
    "pipeline": (
        "headrace.cli.pipeline:pipeline",
        "Plan, run, watch and stop pipelines on Spark.",
    ),
    "spark": (
        "headrace.cli.spark:spark",
        "Print options and Maven coordinates for the PySpark installed here.",
    ),
    "doctor": (
        "headrace.cli.doctor:doctor",
        "Find out what is missing or wrong, for a broker or for Spark, and how to mend it.",
    ),
    "transaction": (
        "headrace.cli.transaction:transaction",
        "List, describe and abort transactions, and find those that hang.",
    ),
    "dlq": ("headrace.cli.dlq:dlq", "Look at dead letters, send them back, delete them."),
    "archive": (
        "headrace.cli.archive:archive",
        "Copy topics to Delta Lake or Iceberg tables, exactly once.",
    ),
    "bridge": (
        "headrace.cli.bridge:bridge",
        "Copy a Kinesis stream into a topic, or a topic into a stream.",
    ),
    "kinesis": (
        "headrace.cli.kinesis:kinesis",
        "Look at groups that read Kinesis streams, move them, take over from the KCL.",
    ),
    "quota": ("headrace.cli.quota:quota", "Show and change the quotas of clients."),
    "user": ("headrace.cli.user:user", "Create, list, change and delete users with passwords."),
    "acl": ("headrace.cli.acl:acl", "Allow and deny: who may do what to which topics and groups."),
    "cluster": (
        "headrace.cli.cluster:cluster",
        "Show brokers, features, API versions and log directories.",
    ),
    "health": ("headrace.cli.health:health", "Check that a broker answers, or wait for it."),
    "bench": ("headrace.cli.bench:bench", "Measure how fast a broker writes and reads."),
    "context": (
        "headrace.cli.context:context",
        "Keep named connections, and choose the one that commands use.",
    ),
    "completion": (
        "headrace.cli.completion:completion",
        "Print the script by which a shell completes commands and names.",
    ),
    "demo": (
        "headrace.cli.demo:demo",
        "Stream real flights through a broker and a Spark pipeline.",
    ),
}


VARIABLE = "_HEADRACE_COMPLETE"
"""By this variable a shell asks for completions."""


class LazyGroup(CommandGroup):
    """A group that knows its commands by name and imports one only to run it or to show its own help.

    `headrace --help` therefore costs the import of click and nothing else, however many commands there are.
    """

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names in the order of the table."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return one command, or None for an unknown name."""
        entry = COMMANDS.get(cmd_name)
        if entry is None:
            return None
        module_name, _, attribute = entry[0].partition(":")
        command = getattr(importlib.import_module(module_name), attribute)
        assert isinstance(command, click.Command), f"{entry[0]} is not a click command"
        return command

    def summary(self, ctx: click.Context, name: str) -> str:
        """Return the line that says what a command does, without importing it."""
        return COMMANDS[name][1]


def _show_version(
    ctx: click.Context,
    _parameter: click.Parameter,
    wanted: bool,  # noqa: FBT001 - click calls it
) -> None:
    if wanted and not ctx.resilient_parsing:
        from headrace.records.accel import state

        click.echo(f"headrace, version {__version__}\naccelerator: {state}")
        ctx.exit()


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_show_version,
    help="Show the version, and whether the accelerator is in use.",
)
def main() -> None:
    """Replayable logs that speak the Apache Kafka protocol, in one small process."""
    from headrace.cli._terminal import shield

    shield()


if VARIABLE in os.environ:
    from headrace.cli import _bash

    _bash.register()
