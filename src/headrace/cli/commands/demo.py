"""`headrace demo`: a year of flights through a broker and a Spark pipeline."""

from __future__ import annotations

import contextlib
import json
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType

import click

from headrace.cli.command_group import command
from headrace.cli.output.printing import say
from headrace.cli.output.terminal import unshielded
from headrace.errors import ConfigError, HeadraceError

EXIT_FAILED = 1
EXIT_USAGE = 2


class _TerminalProgress:
    """Steps and a progress bar on standard error; nothing if standard error is not a terminal."""

    def __init__(self) -> None:
        self._shown = sys.stderr.isatty()

    def step(self, text: str) -> None:
        if self._shown:
            say(f"{text} ...")

    @contextlib.contextmanager
    def count(self, text: str, total: int) -> Iterator[Callable[[int], None]]:
        if not self._shown:
            yield lambda _number: None
            return
        with click.progressbar(
            length=total, label=text, file=unshielded(sys.stderr), show_pos=True
        ) as bar:
            yield bar.update


@command()
@click.option(
    "--records",
    type=click.IntRange(min=1),
    help="The number of flights, from the beginning of 2013.  [default: all 336,776]",
)
@click.option(
    "--output",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("headrace-demo"),
    show_default=True,
    help="The directory for the results, the broker's data and the logs.",
)
@click.option("--bootstrap", metavar="HOST:PORT", help="Use this cluster, and start no broker.")
@click.option("--topic-prefix", default="", help="A prefix for the names of the topics.")
@click.option(
    "--format",
    "output_format",
    type=click.Choice(["table", "json"]),
    default="table",
    show_default=True,
    help="The output format: a table for people, JSON for programs.",
)
def demo(
    records: int | None, output: Path, bootstrap: str | None, topic_prefix: str, output_format: str
) -> None:
    """Stream real flights through a broker and a Spark pipeline, check the results and show them.

    Starts `headrace serve` in a separate process, produces the flights that left New York in 2013 as JSON events
    in the order of their scheduled departure, computes delays per carrier and hour with Spark Structured Streaming,
    writes them to Parquet files and to a topic, and compares both with the input. Needs the extra `demo` and Java 17
    or newer.
    """
    from headrace.demo.report import as_json, as_text
    from headrace.demo.run import Settings, run_demo

    settings = Settings(records, output, bootstrap, topic_prefix)
    try:
        with _terminate_like_interrupt():
            outcome = run_demo(settings, _TerminalProgress())
    except KeyboardInterrupt:
        say("headrace demo: interrupted; all its processes have ended")
        sys.exit(130)
    except ConfigError as error:
        _say_error(error)
        sys.exit(EXIT_USAGE)
    except HeadraceError as error:
        _say_error(error)
        for log in (output / "broker.log", output / "spark.log"):
            if log.exists():
                say(f"log: {log}")
        sys.exit(EXIT_FAILED)
    click.echo(
        json.dumps(as_json(outcome), indent=2) if output_format == "json" else as_text(outcome)
    )


def _say_error(error: HeadraceError) -> None:
    first, *more = error.lines
    say(f"headrace demo: {first}", *more)


@contextlib.contextmanager
def _terminate_like_interrupt() -> Iterator[None]:
    """Handle SIGTERM like Ctrl-C, so that the demo ends its processes."""

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
