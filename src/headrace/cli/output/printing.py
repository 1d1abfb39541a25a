"""Output of the client commands: tables and JSON on standard output, errors in one line on standard error."""

from __future__ import annotations

import functools
import json
import os
import select
import sys
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NoReturn, ParamSpec, TextIO, TypeVar

import click

from headrace.cli.output.terminal import printable

P = ParamSpec("P")
R = TypeVar("R")

CONTEXT: Final = "headrace.context"
"""Key in `click.Context.meta`: the name of the context (connection) that the command uses."""
WIDE: Final = "headrace.wide"
"""Key in `click.Context.meta`: whether tables may be wider than the terminal."""
INTERRUPTED: Final = 130
NOTHING_LISTENS: Final = "Is a broker running there? `headrace dev` starts one on 127.0.0.1:9092."


def print_json(value: object) -> None:
    """Write one JSON document on one line."""
    click.echo(json_text(value))


def json_text(value: object) -> str:
    """Return a value as JSON in one line, with all control characters escaped."""
    text = json.dumps(value, ensure_ascii=False, separators=(", ", ": "))
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else json.dumps(each)[1:-1] for each in text)


def print_facts(facts: Mapping[str, object], width: int) -> None:
    """Write names and values, one per line."""
    for name, value in facts.items():
        click.echo(f"{name + ':':<{width}}{printable(str(value))}")


def print_table(
    columns: Sequence[str],
    rows: Iterable[Sequence[object]],
    *,
    to_stderr: bool = False,
) -> None:
    """Write rows under headings; numbers are aligned to the right.

    On a terminal the widest columns are cut so that a row is one line, unless --wide is given. Other output is never
    cut.

    Args:
        columns: The headings.
        rows: A cell for each heading; None is printed as a dash.
        to_stderr: Whether to write to standard error, as output for people only.
    """
    cells = [["-" if cell is None else printable(str(cell)) for cell in row] for row in rows]
    widths = [
        max([text_width(heading), *(text_width(row[index]) for row in cells)])
        for index, heading in enumerate(columns)
    ]
    numeric = [
        bool(cells) and all(_is_number(row[index]) for row in cells)
        for index in range(len(columns))
    ]
    lines = [list(columns), *cells]
    if is_terminal(sys.stderr if to_stderr else sys.stdout) and not _is_wide():
        import shutil  # loads the compression modules, which most commands do not need

        widths = fitting(widths, numeric, shutil.get_terminal_size().columns)
        lines = [list(map(cut, row, widths)) for row in lines]
    for row in lines:
        padded = [
            " " * (width - text_width(cell)) + cell
            if right
            else cell + " " * (width - text_width(cell))
            for cell, width, right in zip(row, widths, numeric, strict=True)
        ]
        click.echo("  ".join(padded).rstrip(), err=to_stderr)


def is_terminal(stream: TextIO) -> bool:
    """Return whether a stream is a terminal."""
    return stream.isatty()


def _is_wide() -> bool:
    context = click.get_current_context(silent=True)
    return context is not None and bool(context.meta.get(WIDE))


def fitting(widths: Sequence[int], numeric: Sequence[bool], width: int) -> list[int]:
    """Return column widths that fit a terminal. The widest text columns shrink first, then all columns."""
    widths = list(widths)
    texts = [index for index, is_numeric in enumerate(numeric) if not is_numeric]
    everything = list(range(len(widths)))
    for chosen, narrowest in ((texts, 12), (everything, 20), (texts, 6), (everything, 4)):
        while chosen and sum(widths) + 2 * (len(widths) - 1) > width:
            widest = max(chosen, key=widths.__getitem__)
            if widths[widest] <= narrowest:
                break
            widths[widest] -= 1
    return widths


def cut(text: str, width: int) -> str:
    """Return a text of at most `width` terminal columns; an ellipsis marks a cut."""
    if text_width(text) <= width:
        return text
    kept, taken = [], 1
    for character in text:
        taken += text_width(character)
        if taken > width:
            break
        kept.append(character)
    return "".join(kept) + "\N{HORIZONTAL ELLIPSIS}"


def text_width(text: str) -> int:
    """Return the number of terminal columns of a text; a Chinese character has two."""
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.combining(each) else 2 if unicodedata.east_asian_width(each) in "WF" else 1
        for each in text
    )


def _is_number(text: str) -> bool:
    return text == "-" or text.lstrip("-").isdecimal()


def say(*lines: str) -> None:
    """Write a message for people to standard error.

    Args:
        lines: The lines of the message. Control characters in them, such as line feeds of a broker's text, are escaped.
    """
    click.echo("\n".join(map(printable, lines)), err=True)


def fail(text: str, *more: str, code: int = 1) -> NoReturn:
    """End the command with a message of one or more lines."""
    say(f"Error: {text}", *more)
    raise SystemExit(code)


def confirm(question: str) -> None:
    """Ask for confirmation on standard error, naming the context in use; end the command unless the answer is yes."""
    name = _connection_name()
    where = "" if name is None else f"[context {name}] "
    click.confirm(printable(f"{where}{question}"), abort=True, err=True)


def _connection_name() -> str | None:
    context = click.get_current_context(silent=True)
    return None if context is None else context.meta.get(CONTEXT)


def guarded(command: Callable[P, R]) -> Callable[P, R]:
    """Print expected errors as one line, and exit with the code for the error.

    0 done; 1 the work failed; 2 wrong usage or configuration; 130 interrupted. If the reader of the output exits, as in
    `| head`, the command ends without a message and with 0.
    """

    @functools.wraps(command)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        from headrace.errors import (
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
            name = _connection_name()
            where = "" if name is None else f" (context {name})"
            fail(f"{error}{where}. {NOTHING_LISTENS}" if refused else f"{error}{where}")
        except HeadraceError as error:
            fail(*error.lines)
        return result

    return run


def reader_is_gone() -> bool:
    """Return whether the reader of standard output has closed its end. Works only for pipes and sockets."""
    poll = select.poll()
    poll.register(sys.stdout.fileno(), 0)
    return any(events & (select.POLLERR | select.POLLHUP) for _, events in poll.poll(0))


def _quiet_exit() -> NoReturn:
    # Python flushes standard output again at exit, which succeeds on the null device.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    raise SystemExit(0)


def bytes_fields(name: str, data: bytes | None) -> dict[str, Any]:
    """Return a key or value for JSON: text if it is UTF-8, else base64 and a field with the encoding."""
    if data is None:
        return {name: None}
    try:
        return {name: data.decode()}
    except UnicodeDecodeError:
        import base64

        return {name: base64.b64encode(data).decode(), f"{name}_encoding": "base64"}
