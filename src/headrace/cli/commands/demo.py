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

from headrace.cli.output.printing import say
from headrace.cli.output.terminal import unshielded
from headrace.errors import ConfigError, HeadraceError

EXIT_FAILED = 1
EXIT_USAGE = 2


class _TerminalProgress:
    """Steps and a bar on standard error; silent where nobody watches."""

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


@click.command()
@click.option(
    "--records",
    type=click.IntRange(min=1),
    help="How many flights, from the beginning of 2013.  [default: all 336,776]",
)
@click.option(
    "--output",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("headrace-demo"),
    show_default=True,
    help="Where the results, the broker's data and the logs go.",
)
@click.option(
    "--bootstrap", metavar="HOST:PORT", help="Use this cluster instead of a broker of its own."
)
@click.option("--topic-prefix", default="", help="Comes before the names of the topics.")
@click.option(
    "--format",
    "output_format",
    type=click.Choice(["table", "json"]),
    default="table",
    show_default=True,
)
def demo(
    records: int | None, output: Path, bootstrap: str | None, topic_prefix: str, output_format: str
) -> None:
    """Stream real flights through a broker and a Spark pipeline, check the result and show it.

    Starts `headrace serve` in a process of its own, produces the flights that left New York in 2013 as JSON events
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
        say("headrace demo: interrupted; everything it started has ended")
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
    """Let SIGTERM end the demo as Ctrl-C does, so that it ends its processes."""

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
