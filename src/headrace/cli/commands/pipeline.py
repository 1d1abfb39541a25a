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
from headrace.cli.command_group import CommandGroup, argument
from headrace.cli.output.printing import fail, guarded, print_json, print_table, say
from headrace.cli.parent_process import end_with_parent

if TYPE_CHECKING:
    from headrace.pipelines.plan import DefaultCluster, Plan
    from headrace.pipelines.running.session import Sessions
    from headrace.pipelines.status.state import StateDirectory, Status

STOP_POLL_S: Final = 0.1
SHOWN_MS: Final = 7 * 86_400_000
"""The time in milliseconds for which `list` shows a pipeline after its end."""


@click.group(cls=CommandGroup)
def pipeline() -> None:
    """Plan, run, watch and stop pipelines on Spark, declared in a Python file."""


state_option = click.option(
    "--state",
    "state",
    envvar="HEADRACE_PIPELINES",
    show_envvar=True,
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="The directory with the state of pipelines.  [default: ~/.local/state/headrace/pipelines]",
)
_FILE_OPTIONS: Final = (
    argument(
        "file", "The Python file that declares the pipelines.", type=click.Path(path_type=Path)
    ),
    argument(
        "names",
        "The names of the pipelines.  [default: all pipelines of FILE]",
        nargs=-1,
        metavar="[NAME]...",
    ),
    click.option(
        "--master",
        default="local[*]",
        show_default=True,
        metavar="URL",
        help="The Spark master: this process, or a cluster, spark://HOST:PORT.",
    ),
    click.option(
        "--conf",
        multiple=True,
        metavar="KEY=VALUE",
        help="A Spark setting, e.g. --conf spark.driver.memory=4g; repeatable.",
    ),
    click.option(
        "--checkpoints",
        envvar="HEADRACE_CHECKPOINTS",
        show_envvar=True,
        metavar="DIR",
        help="The directory for progress and state of pipelines that declare none; on a cluster, storage that all "
        "nodes share.  [default: checkpoints, beside FILE]",
    ),
    click.option(
        "--trigger",
        metavar="TEXT",
        help='Override the declared trigger: "5 seconds", available_now.',
    ),
    state_option,
)


def file_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that are needed to plan a file of pipelines."""
    for add in reversed(_FILE_OPTIONS):
        command = add(command)
    return command


@pipeline.command("plan")
@file_options
@click.option("--no-spark", is_flag=True, help="Do not start Spark; columns are not checked.")
@client_options
def plan(*, as_json: bool, no_spark: bool, **options: Any) -> None:
    """Show the pipelines that would run, and every error in them. Starts no stream and creates no topic."""
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
@click.option("--isolated", is_flag=True, help="Run each pipeline in a separate process and JVM.")
@click.option(
    "--interval",
    type=click.FloatRange(min=0.1),
    default=10,
    show_default=True,
    metavar="SECONDS",
    help="The interval between status lines of a pipeline, without a terminal.",
)
@click.option("--metrics", metavar="HOST:PORT", help="Serve metrics for Prometheus at /metrics.")
@click.option(
    "--restarts",
    type=click.IntRange(min=0),
    default=10,
    show_default=True,
    metavar="N",
    help="How many consecutive failures of a pipeline lead to a restart.",
)
@click.option(
    "--drain",
    type=click.FloatRange(min=0),
    default=60,
    show_default=True,
    metavar="SECONDS",
    help="How long a stop waits for the current batch.",
)
@click.option("--with-parent", is_flag=True, hidden=True, help="Stop when standard input ends.")
@client_options
def run(*, as_json: bool, **options: Any) -> None:
    """Run the pipelines of a file until they are stopped, or, with the trigger available_now, finished.

    SIGTERM and Ctrl-C let current batches finish; a second signal does not wait. A pipeline that fails is started again
    after growing pauses, unless a restart cannot help.

    Exit codes: 0 stopped or done, 1 a pipeline failed, 2 nothing was started.
    """
    from headrace.cli.commands.pipeline_output import reporter
    from headrace.pipelines.checks.topics import create_topics
    from headrace.pipelines.running.backoff import RestartBackoff
    from headrace.pipelines.running.isolated import IsolatedRunner
    from headrace.pipelines.running.runner import Runner, Signals

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
@click.option(
    "--all", "everything", is_flag=True, help="Also pipelines that ended more than a week ago."
)
@state_option
@format_option
@guarded
def list_pipelines(*, everything: bool, output_format: str, **options: Any) -> None:
    """List running pipelines on this machine, and pipelines that ended in the last seven days."""
    from headrace.cli.commands.pipeline_output import COLUMNS, row

    found = list(_state(options).statuses())
    old = [] if everything else _ended_before(found, SHOWN_MS)
    if old:
        found = [each for each in found if each.name not in old]
        say(
            f"{len(old)} ended more than 7 days ago: `list --all` shows them, `forget --older-than 7d` removes them"
        )
    if output_format == "json":
        print_json([asdict(each) for each in found])
    else:
        print_table(COLUMNS, [row(each) for each in found])


@pipeline.command("describe")
@argument("name", "The name of the pipeline.")
@state_option
@format_option
@guarded
def describe(*, name: str, output_format: str, **options: Any) -> None:
    """Show the declaration, the progress and the end of a pipeline."""
    from headrace.cli.commands.pipeline_output import print_status

    status = _state(options).status(name)
    if status is None:
        fail(f"no pipeline {name} is known: `headrace pipeline list` lists the pipelines")
    if output_format == "json":
        print_json(asdict(status))
    else:
        print_status(status)


@pipeline.command("stop")
@argument("names", "The names of the pipelines.", nargs=-1, metavar="NAME...")
@click.option("--all", "everything", is_flag=True, help="All running pipelines.")
@click.option(
    "--timeout",
    type=click.FloatRange(min=0),
    default=120,
    show_default=True,
    metavar="SECONDS",
    help="How long to wait for the pipelines to end.",
)
@state_option
@format_option
@guarded
def stop(
    *, names: tuple[str, ...], everything: bool, timeout: float, output_format: str, **options: Any
) -> None:
    """Stop pipelines after their current batches, and wait for their end.

    Exit code 1 if a pipeline does not end in time.
    """
    state = _state(options)
    running = [each.name for each in state.statuses() if not each.ended]
    wanted = _chosen(names, running, everything=everything, what="is running")
    for name in wanted:
        state.ask_to_stop(name)
    ended = _wait(state, wanted, timeout)
    _print_states(wanted, ended, output_format)
    if late := [name for name in wanted if name not in ended]:
        fail(f"{', '.join(late)} did not end within {timeout:g} s; the stop request stays valid")


@pipeline.command("forget")
@argument("names", "The names of the pipelines.", nargs=-1, metavar="NAME...")
@click.option("--all", "everything", is_flag=True, help="All pipelines that have ended.")
@click.option(
    "--older-than",
    type=DurationType(),
    help="All pipelines that ended longer ago than this, e.g. 30d.",
)
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
    """Remove ended pipelines from the list; their checkpoints stay."""
    state = _state(options)
    found = list(state.statuses())
    ended = {each.name: each.state for each in found if each.ended}
    if older_than is None:
        wanted = _chosen(names, ended, everything=everything, what="has ended")
    elif names or everything:
        raise click.UsageError("give one of NAMEs, --all or --older-than")
    else:
        wanted = _ended_before(found, older_than)
    for name in wanted:
        state.forget(name)
    _print_states(wanted, ended, output_format)


def _ended_before(statuses: Sequence[Status], age_ms: int) -> list[str]:
    """Return the pipelines that ended, or last reported, longer ago than a given time."""
    before_ms = time.time() * 1000 - age_ms
    return [each.name for each in statuses if each.ended and each.updated_ms < before_ms]


def _chosen(
    names: Sequence[str], found: Collection[str], *, everything: bool, what: str
) -> list[str]:
    """Return the pipelines that a command names."""
    if bool(names) == everything:
        raise click.UsageError("give NAMEs or --all")
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
    """Return the outcomes of the pipelines that ended in time."""
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
    from headrace.pipelines.running.session import Sessions

    settings = assignments(options["conf"], "--conf")
    log_path = state.log_path("-".join(options["names"]) or options["file"].stem)
    return Sessions(f"headrace {options['file'].name}", options["master"], settings, log_path)


def _state(options: dict[str, Any]) -> StateDirectory:
    from headrace.pipelines.status.state import (
        StateDirectory,
        default_directory,
    )

    return StateDirectory(options["state"] or default_directory())


def _metrics(
    listen: str | None, state: StateDirectory, plans: Sequence[Plan]
) -> contextlib.AbstractContextManager[object]:
    if listen is None:
        return contextlib.nullcontext()
    from headrace.pipelines.status.metrics import MetricsServer

    def statuses() -> list[Any]:
        return [each for plan in plans if (each := state.status(plan.name)) is not None]

    server = MetricsServer(listen, statuses)
    say(f"serving metrics on port {server.port}, path /metrics")
    return server


def _child_arguments(context: click.Context) -> list[str]:
    """Return the options for a child process that runs one pipeline and reports only to the state directory."""
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
        stdin=alive,  # a pipe that only this process can write to, so that it ends with this process
        stdout=subprocess.DEVNULL,
        start_new_session=True,  # Ctrl-C is for the parent, which passes it on
    )
