"""What the client commands share: tables and JSON on standard output, errors in one line on standard error."""

from __future__ import annotations

import functools
import json
import os
import select
import shutil
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NoReturn, ParamSpec, TypeVar

import click

from headrace.cli._terminal import printable

P = ParamSpec("P")
R = TypeVar("R")

_NARROWEST: Final = 12
INTERRUPTED: Final = 130
NOTHING_LISTENS: Final = "Is a broker running there? `headrace dev` starts one on 127.0.0.1:9092."


def print_json(value: object) -> None:
    """Write one JSON document on a line of its own."""
    click.echo(json_text(value))


def json_text(value: object) -> str:
    """Return a value as JSON in one line, readable, and with everything escaped that could drive a terminal."""
    text = json.dumps(value, ensure_ascii=False, separators=(", ", ": "))
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else json.dumps(each)[1:-1] for each in text)


def print_facts(facts: Mapping[str, object], width: int) -> None:
    """Write names and values, one a line."""
    for name, value in facts.items():
        click.echo(f"{name + ':':<{width}}{printable(str(value))}")


def print_table(
    columns: Sequence[str],
    rows: Iterable[Sequence[object]],
    *,
    to_stderr: bool = False,
    fit: bool = False,
) -> None:
    """Write rows under headings, numbers to the right.

    Args:
        columns: The headings.
        rows: A cell for each heading; None is a dash.
        to_stderr: Whether it is for people only.
        fit: Whether to cut the widest columns, on a terminal, so that a row is a line. Nothing else depends on it.
    """
    cells = [["-" if cell is None else printable(str(cell)) for cell in row] for row in rows]
    widths = [
        max([len(heading), *(len(row[index]) for row in cells)])
        for index, heading in enumerate(columns)
    ]
    numeric = [
        bool(cells) and all(_is_number(row[index]) for row in cells)
        for index in range(len(columns))
    ]
    if fit and sys.stdout.isatty():
        widths = _fitting(widths, shutil.get_terminal_size().columns)
        cells = [
            [
                cell if len(cell) <= width else f"{cell[: width - 1]}\N{HORIZONTAL ELLIPSIS}"
                for cell, width in zip(row, widths, strict=True)
            ]
            for row in cells
        ]
    for row in [list(columns), *cells]:
        line = "  ".join(
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(row, widths, numeric, strict=True)
        )
        click.echo(line.rstrip(), err=to_stderr)


def _fitting(widths: list[int], width: int) -> list[int]:
    """Return widths of columns that fit a terminal, taken off the widest ones."""
    widths = list(widths)
    while sum(widths) + 2 * (len(widths) - 1) > width and max(widths) > _NARROWEST:
        widths[widths.index(max(widths))] -= 1
    return widths


def _is_number(text: str) -> bool:
    return text == "-" or text.lstrip("-").isdecimal()


def say(*lines: str) -> None:
    """Write a message for people to standard error.

    Args:
        lines: Its lines. What a broker says in one of them begins no other line.
    """
    click.echo("\n".join(map(printable, lines)), err=True)


def fail(text: str, *more: str, code: int = 1) -> NoReturn:
    """End the command with a message, of one line or more."""
    say(f"Error: {text}", *more)
    raise SystemExit(code)


def confirm(question: str) -> None:
    """Ask on standard error; ends the command unless the answer is yes."""
    click.confirm(printable(question), abort=True, err=True)


def guarded(command: Callable[P, R]) -> Callable[P, R]:
    """Turn the failures that a user can do something about into one line and an exit code.

    0 done; 1 the work failed; 2 wrong usage or configuration; 130 interrupted. A reader of the output that goes away
    (`| head`) ends a command quietly, with 0: it has what it wanted.
    """

    @functools.wraps(command)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        from headrace.errors import (  # noqa: PLC0415 - not for `--help`
            ConfigError,
            HeadraceError,
            TransportError,
        )

        try:
            result = command(*args, **kwargs)
            sys.stdout.flush()
        except BrokenPipeError:
            _quiet_exit()
        except KeyboardInterrupt:
            raise SystemExit(INTERRUPTED) from None
        except ConfigError as error:
            fail(*error.lines, code=2)
        except TransportError as error:
            refused = "cannot connect" in str(error)
            fail(f"{error}. {NOTHING_LISTENS}" if refused else str(error))
        except HeadraceError as error:
            fail(*error.lines)
        return result

    return run


def reader_is_gone() -> bool:
    """Return whether the reader of standard output has closed its end, as `head` does; only a pipe or socket tells."""
    poll = select.poll()
    poll.register(sys.stdout.fileno(), 0)
    return any(events & (select.POLLERR | select.POLLHUP) for _, events in poll.poll(0))


def _quiet_exit() -> NoReturn:
    # Python flushes standard output once more at exit; into nothing it does so without complaint.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    raise SystemExit(0)


def bytes_fields(name: str, data: bytes | None) -> dict[str, Any]:
    """Return a key or value for JSON: text where it is UTF-8, else base64 with a field that says so."""
    if data is None:
        return {name: None}
    try:
        return {name: data.decode()}
    except UnicodeDecodeError:
        import base64  # noqa: PLC0415 - rarely needed

        return {name: base64.b64encode(data).decode(), f"{name}_encoding": "base64"}
