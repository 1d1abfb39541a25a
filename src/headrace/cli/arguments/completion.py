"""Shell completion of the names of topics, groups, transactional ids and contexts.

The shell waits after its user has pressed the Tab key. The broker therefore has one second to answer, and an error
completes nothing and prints nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final

from headrace.cli.arguments.connection import connection_of

if TYPE_CHECKING:
    import click

    from headrace.clients.admin.blocking import Admin

DEADLINE_S: Final = 1.5
"""The time in seconds that a completion may take if it asks a broker."""
REQUEST_MS: Final = 1_000
_ORDINARY: Final = frozenset("._-:@%+=,/")
"""The characters, besides a-z, A-Z and 0-9, without a special meaning in a shell word."""


def complete_topics(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Return names of topics; internal topics only if `incomplete` is a prefix of their names."""
    from headrace.cli.output.internal import is_own_topic

    def ask(admin: Admin) -> Iterable[str]:
        wanted = set(admin.topics(internal=bool(incomplete)))
        shown = {name for name in admin.topics() if not is_own_topic(name)}
        return shown | (
            {name for name in wanted if name.startswith(incomplete)} if incomplete else set()
        )

    return _names(ctx, param, incomplete, ask)


def complete_letters(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Return names of topics with dead letters, and of dead-letter topics."""
    from headrace.dead_letters.letter_headers import DEAD_LETTER_PREFIX

    def ask(admin: Admin) -> Iterable[str]:
        found = [name for name in admin.topics() if name.startswith(DEAD_LETTER_PREFIX)]
        return [*(name.removeprefix(DEAD_LETTER_PREFIX) for name in found), *found]

    return _names(ctx, param, incomplete, ask)


def complete_groups(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Return names of groups; groups of Headrace's tools only if `incomplete` is a prefix of their names."""
    from headrace.cli.output.internal import is_own_group

    def ask(admin: Admin) -> Iterable[str]:
        names = [each.group_id for each in admin.groups()]
        return [
            name
            for name in names
            if not is_own_group(name) or (incomplete and name.startswith(incomplete))
        ]

    return _names(ctx, param, incomplete, ask)


def complete_transactions(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Return the transactional ids of the cluster."""

    def ask(admin: Admin) -> Iterable[str]:
        return [each.transactional_id for each in admin.transactions()]

    return _names(ctx, param, incomplete, ask)


def complete_contexts(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    """Return the names of stored contexts."""
    from headrace.cli.arguments import contexts

    return [name for name in contexts.names() if name.startswith(incomplete)]


def _names(
    ctx: click.Context,
    param: click.Parameter,
    incomplete: str,
    ask: Callable[[Admin], Iterable[str]],
) -> list[str]:
    """Return the names from a broker that begin with `incomplete` and are not on the command line already."""
    given = ctx.params.get(param.name or "") or ()
    before = {given} if isinstance(given, str) else set(given)
    found = _asked(ctx, ask)
    return sorted(
        name
        for name in found
        if name.startswith(incomplete) and name not in before and _is_one_argument(name)
    )


def _is_one_argument(name: str) -> bool:
    """Return whether a name stays one argument when bash puts it on the command line unquoted.

    Any client may choose the names of groups and transactions. `;`, `$(` or a line feed in a name would make the shell
    run a part of it, and a name that begins with a dash would be an option.
    """
    return not name.startswith("-") and all(each.isalnum() or each in _ORDINARY for each in name)


def _asked(ctx: click.Context, ask: Callable[[Admin], Iterable[str]]) -> list[str]:
    import contextlib
    import io
    import logging
    import threading

    found: list[str] = []

    def run() -> None:
        from headrace.clients.admin.blocking import Admin

        with contextlib.suppress(Exception):
            bootstrap, properties = connection_of(ctx, "client")
            properties["request.timeout.ms"] = str(REQUEST_MS)
            with Admin(properties.pop("bootstrap.servers", bootstrap), **properties) as admin:
                found.extend(ask(admin))

    # A thread, because a host name lookup cannot be cancelled.
    worker = threading.Thread(target=run, daemon=True)
    logging.disable(logging.CRITICAL)
    with contextlib.redirect_stderr(io.StringIO()):
        worker.start()
        worker.join(DEADLINE_S)
    return list(found)
