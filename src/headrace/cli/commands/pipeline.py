"""`headrace pipeline`: declared pipelines on Spark, planned, run, watched and stopped."""

from __future__ import annotations

import contextlib
import functools
import os
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from headrace.cli.arguments.connection import assignments
from headrace.cli.arguments.options import client_options, format_option
from headrace.cli.arguments.types import DurationType
from headrace.cli.command_group import CommandGroup
from headrace.cli.output.printing import fail, guarded, print_json, print_table, say

if TYPE_CHECKING:
    from headrace.pipelines.plan import DefaultCluster, Plan
    from headrace.pipelines.session import Sessions
    from headrace.pipelines.state import StateDirectory, Status

STOP_POLL_S: Final = 0.1
SHOWN_MS: Final = 7 * 86_400_000
"""How long `list` shows what has ended."""


@click.group(cls=CommandGroup)
def pipeline() -> None:
    """Pipelines on Spark, declared in a Python file."""


state_option = click.option(
    "--state",
    "state",
    envvar="HEADRACE_PIPELINES",
    show_envvar=True,
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Where running pipelines are noted.  [default: ~/.local/state/headrace/pipelines]",
)
_FILE_OPTIONS: Final = (
    click.argument("file", type=click.Path(path_type=Path)),
    click.argument("names", nargs=-1, metavar="[NAME]..."),
    click.option(
        "--master",
        default="local[*]",
        show_default=True,
        metavar="URL",
        help="Where Spark runs: this process, or a cluster, spark://HOST:PORT.",
    ),
    click.option(
        "--conf",
        multiple=True,
        metavar="KEY=VALUE",
        help="A setting of Spark, e.g. --conf spark.driver.memory=4g.",
    ),
    click.option(
        "--checkpoints",
        envvar="HEADRACE_CHECKPOINTS",
        show_envvar=True,
        metavar="DIR",
        help="Where pipelines keep progress and state that declare no place of their own; on a cluster, storage that "
        "all of it sees.  [default: checkpoints, beside FILE]",
    ),
    click.option(
        "--trigger",
        metavar="TEXT",
        help='In place of what is declared: "5 seconds", available_now.',
    ),
    state_option,
)


def file_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add what a file of pipelines needs to be planned."""
    for add in reversed(_FILE_OPTIONS):
        command = add(command)
    return command


@pipeline.command("plan")
@file_options
@click.option("--no-spark", is_flag=True, help="Do not start Spark: nothing is said of columns.")
@client_options
def plan(*, as_json: bool, no_spark: bool, **options: Any) -> None:
    """Show what would run, with all that is wrong with it; no stream is started, no topic created.

    NAME...: these pipelines of the file alone.
    """
    if no_spark:
        plans = _plans(options)
    else:
        sessions = _sessions(options, _state(options))
        try:
            plans = _plans(options, sessions)
        finally:
            sessions.close()
    if as_json:
        print_json([each.as_dict() for each in plans])
        return
    from headrace.cli.commands.pipeline_output import print_plan

    for each in plans:
        print_plan(each)


@pipeline.command("run")
@file_options
@click.option("--isolated", is_flag=True, help="Each pipeline in a process and a JVM of its own.")
@click.option(
    "--interval",
    type=click.FloatRange(min=0.1),
    default=10,
    show_default=True,
    metavar="SECONDS",
    help="How often a line tells of each, where no terminal is.",
)
@click.option("--metrics", metavar="HOST:PORT", help="Serve metrics for Prometheus at /metrics.")
@click.option(
    "--restarts",
    type=click.IntRange(min=0),
    default=10,
    show_default=True,
    metavar="N",
    help="How often in a row one is started again after a failure.",
)
@click.option(
    "--drain",
    type=click.FloatRange(min=0),
    default=60,
    show_default=True,
    metavar="SECONDS",
    help="How long a stop waits for the batch under way.",
)
@click.option("--with-parent", is_flag=True, hidden=True, help="End when standard input does.")
@client_options
def run(*, as_json: bool, **options: Any) -> None:
    """Run the pipelines of a file until they are stopped, or, by the trigger available_now, are done.

    SIGTERM and Ctrl-C let batches under way finish; a second signal does not wait. One that fails is started again,
    ever later, unless that cannot help. Exit codes: 0 stopped or done, 1 a pipeline failed, 2 nothing was started.
    """
    from headrace.cli.commands.pipeline_output import reporter
    from headrace.pipelines.backoff import RestartBackoff
    from headrace.pipelines.isolated import (
        IsolatedRunner,
        end_with_parent,
    )
    from headrace.pipelines.running import Runner, Signals
    from headrace.pipelines.topics import create_topics

    shown = reporter(as_json=as_json, interval_s=options["interval"])
    state, backoff = _state(options), RestartBackoff(attempts=options["restarts"])
    with Signals().caught() as signals:
        if options["with_parent"]:
            end_with_parent()
        plans = _plans(options)
        create_topics(plans, _connection(options))
        with _metrics(options["metrics"], state, plans):
            if options["isolated"]:
                arguments = _child_arguments(click.get_current_context())
                spawn = functools.partial(_spawn, options["file"], arguments, os.pipe()[0])
                isolated = IsolatedRunner(spawn, state, shown, signals, say, backoff)
                done = isolated.run([each.name for each in plans])
            else:
                sessions = _sessions(options, state)
                say(
                    f"starting Spark ({options['master']}), pid {os.getpid()}; its log is {sessions.log_path}"
                )
                done = Runner(sessions, state, shown, signals, backoff, options["drain"]).run(plans)
    if not done:
        raise SystemExit(1)


@pipeline.command("list")
@click.option("--all", "everything", is_flag=True, help="Those, too, that ended over a week ago.")
@state_option
@format_option
@guarded
def list_pipelines(*, everything: bool, output_format: str, **options: Any) -> None:
    """List pipelines that run on this machine, and how others have ended in the last seven days."""
    from headrace.cli.commands.pipeline_output import COLUMNS, row

    found = list(_state(options).statuses())
    old = [] if everything else _ended_before(found, SHOWN_MS)
    if old:
        found = [each for each in found if each.name not in old]
        say(f"{len(old)} ended more than 7 days ago: list --all, or forget --older-than 7d")
    if output_format == "json":
        print_json([asdict(each) for each in found])
    else:
        print_table(COLUMNS, [row(each) for each in found])


@pipeline.command("describe")
@click.argument("name")
@state_option
@format_option
@guarded
def describe(*, name: str, output_format: str, **options: Any) -> None:
    """Show what a pipeline is, how it goes, and why it ended."""
    from headrace.cli.commands.pipeline_output import print_status

    status = _state(options).status(name)
    if status is None:
        fail(f"nothing is known of a pipeline {name}: `headrace pipeline list` lists them")
    if output_format == "json":
        print_json(asdict(status))
    else:
        print_status(status)


@pipeline.command("stop")
@click.argument("names", nargs=-1, metavar="NAME...")
@click.option("--all", "everything", is_flag=True, help="All that run.")
@click.option(
    "--timeout",
    type=click.FloatRange(min=0),
    default=120,
    show_default=True,
    metavar="SECONDS",
    help="How long to wait for their end.",
)
@state_option
@format_option
@guarded
def stop(
    *, names: tuple[str, ...], everything: bool, timeout: float, output_format: str, **options: Any
) -> None:
    """Let pipelines finish the batch under way and end, and wait for that.

    Exit code 1 if one does not end in time.
    """
    state = _state(options)
    running = [each.name for each in state.statuses() if not each.ended]
    wanted = _chosen(names, running, everything=everything, what="is running")
    for name in wanted:
        state.ask_to_stop(name)
    ended = _wait(state, wanted, timeout)
    _print_states(wanted, ended, output_format)
    if late := [name for name in wanted if name not in ended]:
        fail(f"{', '.join(late)} did not end within {timeout:g} s; the request stands")


@pipeline.command("forget")
@click.argument("names", nargs=-1, metavar="NAME...")
@click.option("--all", "everything", is_flag=True, help="All that have ended.")
@click.option("--older-than", type=DurationType(), help="All that ended so long ago, as 30d.")
@state_option
@format_option
@guarded
def forget(
    *,
    names: tuple[str, ...],
    everything: bool,
    older_than: int | None,
    output_format: str,
    **options: Any,
) -> None:
    """Take pipelines that have ended from the list; their checkpoints stay."""
    state = _state(options)
    found = list(state.statuses())
    ended = {each.name: each.state for each in found if each.ended}
    if older_than is None:
        wanted = _chosen(names, ended, everything=everything, what="has ended")
    elif names or everything:
        raise click.UsageError("which pipelines: names, --all or --older-than, one of them")
    else:
        wanted = _ended_before(found, older_than)
    for name in wanted:
        state.forget(name)
    _print_states(wanted, ended, output_format)


def _ended_before(statuses: Sequence[Status], age_ms: int) -> list[str]:
    """Return those of which nothing has been heard for so long, since they ended."""
    before_ms = time.time() * 1000 - age_ms
    return [each.name for each in statuses if each.ended and each.updated_ms < before_ms]


def _chosen(
    names: Sequence[str], found: Collection[str], *, everything: bool, what: str
) -> list[str]:
    """Return the pipelines that a command is for."""
    if bool(names) == everything:
        raise click.UsageError("which pipelines: names, or --all")
    for name in names:
        if name not in found:
            fail(f"no pipeline {name} {what}")
    return list(names or found)


def _print_states(names: Sequence[str], states: Mapping[str, str], output_format: str) -> None:
    if output_format == "json":
        print_json([{"pipeline": name, "state": states.get(name)} for name in names])
    else:
        print_table(("PIPELINE", "STATE"), [(name, states.get(name)) for name in names])


def _wait(state: StateDirectory, names: Sequence[str], timeout_s: float) -> dict[str, str]:
    """Return how pipelines ended, without those that did not in time."""
    deadline = time.monotonic() + timeout_s
    while True:
        found = {name: state.status(name) for name in names}
        ended: dict[str, str] = {
            name: each.state for name, each in found.items() if each and each.ended
        }
        if len(ended) == len(names) or time.monotonic() >= deadline:
            return ended
        time.sleep(STOP_POLL_S)


def _plans(options: dict[str, Any], sessions: Sessions | None = None) -> list[Plan]:
    from headrace.pipelines.loading import choose, load_file
    from headrace.pipelines.planning import plan_all

    chosen = choose(load_file(options["file"]), options["names"])
    connection = _connection(options)
    return plan_all(chosen, connection, options["checkpoints"], options["trigger"], sessions)


def _connection(options: dict[str, Any]) -> DefaultCluster:
    from headrace.pipelines.plan import DefaultCluster

    properties = dict(options["properties"])
    return DefaultCluster(properties.pop("bootstrap.servers", options["bootstrap"]), properties)


def _sessions(options: dict[str, Any], state: StateDirectory) -> Sessions:
    from headrace.pipelines.session import Sessions

    settings = assignments(options["conf"], "--conf")
    log_path = state.log_path("-".join(options["names"]) or options["file"].stem)
    return Sessions(f"headrace {options['file'].name}", options["master"], settings, log_path)


def _state(options: dict[str, Any]) -> StateDirectory:
    from headrace.pipelines.state import (
        StateDirectory,
        default_directory,
    )

    return StateDirectory(options["state"] or default_directory())


def _metrics(
    listen: str | None, state: StateDirectory, plans: Sequence[Plan]
) -> contextlib.AbstractContextManager[object]:
    if listen is None:
        return contextlib.nullcontext()
    from headrace.pipelines.metrics import MetricsServer

    def statuses() -> list[Any]:
        return [each for plan in plans if (each := state.status(plan.name)) is not None]

    server = MetricsServer(listen, statuses)
    say(f"metrics at port {server.port}, /metrics")
    return server


def _child_arguments(context: click.Context) -> list[str]:
    """Return this command's options for a child that runs one pipeline and tells only the state directory."""
    arguments = ["--format", "json"]
    for parameter in context.command.params:
        value = context.params.get(parameter.name or "")
        own = parameter.name in {"isolated", "with_parent", "metrics", "output_format"}
        if own or not isinstance(parameter, click.Option) or value is None:
            continue
        for each in value if parameter.multiple else (value,):
            arguments += [parameter.opts[-1], str(each)]
    return ["pipeline", "run", "--with-parent", *arguments]


def _spawn(file: Path, arguments: Sequence[str], alive: int, name: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(  # noqa: S603 - this command itself
        [sys.executable, "-m", "headrace.cli", *arguments, str(file), name],
        stdin=alive,  # a pipe that only this process could write to, and that ends with it
        stdout=subprocess.DEVNULL,
        start_new_session=True,  # Ctrl-C is for the parent, which passes it on
    )
