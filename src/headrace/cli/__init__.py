"""The command `headrace`: a table of sub-commands, each imported only when it is called.

Exit codes, the same for every command: 0 done, 1 the work failed, 2 wrong usage or configuration, 130 interrupted.
"""

from __future__ import annotations

import importlib
import os

import click

from headrace import __version__
from headrace.cli.command_group import CommandGroup

SUMMARIES: dict[str, str] = {
    "serve": "Run a broker that keeps its data in a directory.",
    "dev": "Run a broker in memory, for development and tests.",
    "topic": "Create, list, describe, change and delete topics.",
    "produce": "Write records from standard input.",
    "consume": "Read records to standard output.",
    "group": "List, describe, attach, reset and delete consumer groups.",
    "run": "Run the workers of an app.",
    "pipeline": "Plan, run, watch and stop pipelines on Spark.",
    "spark": "Print options and Maven coordinates for the PySpark installed here.",
    "doctor": "Check the setup of a broker or of Spark, and say how to repair it.",
    "transaction": "List, describe and abort transactions, and find those that hang.",
    "dlq": "List, show, resend and delete dead letters.",
    "archive": "Copy topics to Delta Lake or Iceberg tables, exactly once.",
    "bridge": "Copy a Kinesis stream into a topic, or a topic into a stream.",
    "kinesis": "List, describe and reset groups that read Kinesis streams; take over from the KCL.",
    "quota": "Show and change the quotas of clients.",
    "user": "Create, list, change and delete users with passwords.",
    "acl": "Create, list and delete access control entries (ACLs).",
    "cluster": "Show brokers, features, API versions and log directories.",
    "health": "Check that a broker answers, or wait for it.",
    "bench": "Measure how fast a broker writes and reads.",
    "context": "Store named connections, and choose the one that commands use.",
    "completion": "Print the script with which a shell completes commands and names.",
    "demo": "Stream real flights through a broker and a Spark pipeline.",
}
"""The lines of `headrace --help`, by command. The command NAME is the click command NAME in `commands/NAME.py`."""

VARIABLE = "_HEADRACE_COMPLETE"
"""The environment variable that a shell sets when it asks for completions."""


class LazyGroup(CommandGroup):
    """A group that imports a command only to run it or to show its help.

    `headrace --help` imports click and nothing else, however many commands there are.
    """

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names in the order of the table."""
        return list(SUMMARIES)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return one command, or None for an unknown name."""
        if cmd_name not in SUMMARIES:
            return None
        module = importlib.import_module(f"headrace.cli.commands.{cmd_name}")
        command = getattr(module, cmd_name)
        assert isinstance(command, click.Command), f"{command!r} is not a click command"
        return command

    def summary(self, ctx: click.Context, name: str) -> str:
        """Return the one-line description of a command, without importing it."""
        return SUMMARIES[name]


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
    """A streaming platform that speaks the Apache Kafka protocol, in one small process."""
    from headrace.cli.output.terminal import shield

    shield()


if VARIABLE in os.environ:
    from headrace.cli import bash_completion

    bash_completion.register()
