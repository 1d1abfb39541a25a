"""`headrace run`: run the workers of an app until a signal; with --reload restart them when the code changes."""

from __future__ import annotations

import importlib
import logging
import os
import signal
import subprocess
import sys
import threading
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Final, NoReturn

import click

from headrace.cli.command_group import argument, command
from headrace.cli.output.printing import fail, guarded, say
from headrace.cli.output.terminal import printable, unshielded
from headrace.cli.parent_process import end_with_parent

if TYPE_CHECKING:
    from headrace.workers.app import App

LOOK_EVERY_S: Final = 0.5
FAILED: Final = 1
MISCONFIGURED: Final = 2
TALKATIVE: Final = ("aiobotocore", "botocore")
"""Libraries whose log lines below WARNING are hidden, because they help only to debug the library."""


@command()
@argument(
    "target",
    "The app: the name of a `headrace.App` in a module or in a Python file, e.g. shop.workers:app.",
    metavar="MODULE:APP|FILE:APP",
)
@click.option("--reload", is_flag=True, help="Restart when a .py file below the directory changes.")
@click.option(
    "-C",
    "--directory",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    default=Path(),
    help="The directory of the module.  [default: the current directory]",
)
@click.option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"]),
    default="info",
    show_default=True,
    help="The lowest level of log lines.",
)
@click.option(
    "--log-format",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="The format of log lines: text for people, or one JSON object per line.",
)
@click.option("--with-parent", is_flag=True, hidden=True, help="Stop when standard input ends.")
@guarded
def run(
    target: str,
    directory: Path,
    log_level: str,
    log_format: str,
    *,
    reload: bool,
    with_parent: bool,
) -> None:
    """Run the workers of an app: APP is a `headrace.App` in MODULE, or in a Python FILE.

    SIGTERM and Ctrl-C let handlers finish, up to the app's limit, and commit; a second signal does not wait. Exit
    codes: 0 stopped by a signal, 1 a worker failed, 2 the app does not exist or its settings are wrong.
    """
    from headrace.errors import WorkerFailedError

    if reload:
        options = ["--log-level", log_level, "--log-format", log_format]
        sys.exit(_Reloader(target, directory, options).run())
    if with_parent:
        end_with_parent()
    _log_to_terminal(log_level.upper(), log_format)
    # The program's own output, colours included; nothing else writes to this stream.
    sys.stdout = unshielded(sys.stdout)
    app = _load(target, directory)
    say(f"running {target}, pid {os.getpid()}; Ctrl-C stops it after running handlers")
    try:
        app.run()
    except WorkerFailedError as error:
        _show_cause(error)
        raise


def _show_cause(error: BaseException) -> None:
    """Print the traceback of an exception that the program's code raised."""
    from headrace.workers.failure.tracebacks import Failures, place_in

    cause = error.__cause__
    if cause is not None and place_in(cause):
        click.echo(Failures().text(cause), err=True, nl=False)


class _Lines(logging.Formatter):
    """Text log lines. Further lines of Headrace's messages begin with a bar, so that no text can forge a log line."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - the name that logging has for it
        text = super().formatMessage(record)
        if record.name.partition(".")[0] != "headrace":
            return text
        first, *more = text.split("\n")
        return "\n".join([printable(first), *(f"    | {printable(line)}" for line in more)])


def _log_to_terminal(level: str, log_format: str) -> None:
    logging.basicConfig(level=level)
    for handler in logging.getLogger().handlers:
        handler.setFormatter(_Lines("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    if log_format == "json":
        from headrace.server.log import JsonFormatter

        for handler in logging.getLogger().handlers:
            handler.setFormatter(JsonFormatter())
    if level != "DEBUG":
        for name in TALKATIVE:
            logging.getLogger(name).setLevel(max(logging.WARNING, logging.getLevelName(level)))


def _load(target: str, directory: Path) -> App:
    """Import the app.

    Raises:
        UsageError: No app has this name.
    """
    from headrace.errors import ConfigError
    from headrace.workers.app import App

    module_name, separator, attribute = target.partition(":")
    if os.sep in module_name or module_name.endswith(".py"):
        directory /= Path(module_name).parent
        module_name = Path(module_name).name.removesuffix(".py")
    named = all(part.isidentifier() for part in module_name.split("."))
    if not separator or not named or not attribute:
        raise click.UsageError(
            f"expected MODULE:APP or FILE:APP, such as orders.workers:app or orders/workers.py:app, not {target!r}"
        )
    sys.path.insert(0, str(directory.absolute()))
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not module_name.startswith(error.name):
            _fail_to_import(error)  # the module exists, but a module that it imports does not
        raise click.UsageError(f"no module {module_name!r} below {directory.absolute()}") from None
    except ConfigError as error:
        fail(f"{_where(error, directory)}: {error}", code=MISCONFIGURED)
    except Exception as error:  # noqa: BLE001 - it is the program's, and is shown
        _fail_to_import(error)
    app = getattr(module, attribute, None)
    if not isinstance(app, App):
        what = "nothing" if app is None else type(app).__name__
        raise click.UsageError(f"{target} is {what}, not a headrace.App")
    return app


def _fail_to_import(error: Exception) -> NoReturn:
    """End with the traceback of a failed import, without Headrace's own frames above the program."""
    shown = traceback.TracebackException.from_exception(error)
    frames = list(shown.stack)
    while frames and _is_on_the_way(frames[0].filename):
        del frames[0]
    shown.stack = traceback.StackSummary.from_list(frames)
    fail("the app cannot be imported", *"".join(shown.format()).rstrip().split("\n"), code=FAILED)


def _is_on_the_way(filename: str) -> bool:
    ours, theirs = Path(__file__).parents[1], Path(click.__file__).parent
    path = Path(filename)
    return (
        filename.startswith("<frozen")
        or path == Path(importlib.__file__)
        or path.is_relative_to(ours)
        or path.is_relative_to(theirs)
    )


def _where(error: Exception, directory: Path) -> str:
    """Return the innermost line of the program in the traceback of an error."""
    frames = traceback.extract_tb(error.__traceback__)
    inside, ours = directory.absolute(), Path(__file__).parents[1]
    paths = [(Path(each.filename), each) for each in frames]
    own = [
        each
        for path, each in paths
        if path.is_relative_to(inside) and not path.is_relative_to(ours)
    ]
    return f"{own[-1].filename}, line {own[-1].lineno}" if own else "the app"


class _Reloader:
    """Runs the command in a child process, and restarts it when files change. Checks files twice per second."""

    def __init__(self, target: str, directory: Path, options: list[str]) -> None:
        self._directory = directory
        where = ["--directory", str(directory)]
        self._command = [sys.executable, "-m", "headrace.cli", "run", target, *where, *options]
        self._command.append("--with-parent")
        self._stdin, self._open_while_running = os.pipe()
        self._stopped = threading.Event()
        self._child: subprocess.Popen[bytes] | None = None

    def run(self) -> int:
        """Run until a signal; return the exit code."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._stop)
        while True:
            seen = self._times()
            self._child = subprocess.Popen(  # noqa: S603 - this command itself
                self._command, stdin=self._stdin, start_new_session=True
            )
            changed = self._watch(self._child, seen)
            if changed is not None:
                say(f"{changed} changed: restarting the app")
            self._child.terminate()
            code = self._child.wait()
            if changed is None:
                return code if code >= 0 else FAILED

    def _watch(self, child: subprocess.Popen[bytes], seen: dict[Path, int]) -> Path | None:
        """Return the file that has changed, or None after a signal."""
        told = False
        while not self._stopped.wait(LOOK_EVERY_S):
            if (changed := _changed(seen, self._times())) is not None:
                return changed
            if not told and (ended := child.poll()) is not None:
                told = True
                say(f"the app ended with {ended}; it will be restarted when a file changes")
        return None

    def _stop(self, number: int, _frame: object) -> None:
        """Stop the child cleanly. Pass a second signal on to it."""
        if self._stopped.is_set() and self._child is not None and self._child.poll() is None:
            self._child.send_signal(number)
        self._stopped.set()

    def _times(self) -> dict[Path, int]:
        """Return the modification time of each file."""
        times: dict[Path, int] = {}
        for folder, folders, files in os.walk(self._directory):
            folders[:] = [name for name in folders if not name.startswith((".", "__pycache__"))]
            for name in files:
                if name.endswith(".py"):
                    path = Path(folder, name)
                    try:
                        times[path] = path.stat().st_mtime_ns
                    except FileNotFoundError:
                        continue  # an editor is replacing the file
        return times


def _changed(before: dict[Path, int], after: dict[Path, int]) -> Path | None:
    """Return a file that was changed, added or removed, or None."""
    return next(
        (path for path in sorted({*before, *after}) if before.get(path) != after.get(path)), None
    )
