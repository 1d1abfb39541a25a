"""`headrace user`: users that authenticate with a password, by SCRAM or PLAIN."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

import click

from headrace.cli.arguments.connection import open_client
from headrace.cli.arguments.options import client_options, data_option
from headrace.cli.command_group import CommandGroup, argument
from headrace.cli.output.outcomes import print_outcomes
from headrace.cli.output.printing import confirm, fail, print_json, print_table, say

if TYPE_CHECKING:
    from headrace.clients.blocking import BlockingClient
    from headrace.clients.flows.scram import SaltedPassword, UserDescription
    from headrace.errors import ApiError

MECHANISMS: Final = ("SCRAM-SHA-256", "SCRAM-SHA-512")
MIN_ITERATIONS: Final = 4096
MAX_ITERATIONS: Final = 16_384


class Users(Protocol):
    """Users: those of a running broker, or those in a data directory."""

    def describe(self, names: Sequence[str] | None) -> dict[str, UserDescription | ApiError]:
        """Return users by name, or RESOURCE_NOT_FOUND for a name; None returns all users."""

    def set(self, name: str, passwords: Sequence[SaltedPassword]) -> None:
        """Set the password of a user; it replaces an earlier one."""

    def delete(self, name: str) -> None:
        """Delete a user and its credentials."""


class _AskedUsers:
    """The users of a running broker."""

    def __init__(self, client: BlockingClient) -> None:
        self._client = client

    def describe(self, names: Sequence[str] | None) -> dict[str, UserDescription | ApiError]:
        from headrace.clients.flows import scram

        return self._client.run(scram.describe_users(names))

    def set(self, name: str, passwords: Sequence[SaltedPassword]) -> None:
        from headrace.clients.flows import scram

        self._client.run(scram.set_user(name, passwords))

    def delete(self, name: str) -> None:
        from headrace.clients.flows import scram

        self._client.run(scram.delete_user(name))


@contextlib.contextmanager
def _users(
    bootstrap: str,
    properties: dict[str, str],
    data: Path | None,
    *,
    create: bool = False,
    changes: bool = True,
) -> Iterator[Users]:
    """Open the users of a running broker or of a data directory."""
    if data is None:
        with open_client(bootstrap, properties) as client:
            yield _AskedUsers(client)
        return
    from headrace.cli.commands.offline import StoredUsers, metadata_of

    with metadata_of(data, create=create, changes=changes) as writer:
        yield StoredUsers(writer)


@click.group(cls=CommandGroup)
def user() -> None:
    """Create, list, change and delete users and their passwords, on Headrace or any Kafka.

    This command salts and hashes passwords; the broker never receives them. With --data it creates users before the
    first start of a broker.
    """


def password_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options for a new password: --password-file, --mechanism, --iterations."""
    for add in (
        click.option(
            "--iterations",
            type=click.IntRange(MIN_ITERATIONS, MAX_ITERATIONS),
            default=MIN_ITERATIONS,
            show_default=True,
            help="The number of hash iterations of the password.",
        ),
        click.option(
            "-m",
            "--mechanism",
            "mechanisms",
            multiple=True,
            type=click.Choice(MECHANISMS, case_sensitive=False),
            help="The SCRAM mechanism for the password; repeatable.  [default: both]",
        ),
        click.option(
            "--password-file",
            type=click.Path(dir_okay=False, allow_dash=False, path_type=Path),
            metavar="FILE",
            help="Read the password from a file.  [default: HEADRACE_PASSWORD, else a prompt, else standard input]",
        ),
    ):
        command = add(command)
    return command


@user.command("create")
@argument("name", "The name of the new user.")
@password_options
@data_option
@client_options
def create(
    bootstrap: str,
    properties: dict[str, str],
    *,
    name: str,
    data: Path | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Create a user with a password.

    The password is never an argument, because the list of processes shows arguments. Exit code 1 if the user exists.
    """
    with _users(bootstrap, properties, data, create=True) as users:
        if _is_known(users, name):
            fail(f"user {name!r} exists already; `headrace user set-password` changes the password")
        _set(users, name, options)
    _tell(name, "created", as_json=as_json)


@user.command("set-password")
@argument("name", "The name of the user.")
@password_options
@data_option
@client_options
def set_password(
    bootstrap: str,
    properties: dict[str, str],
    *,
    name: str,
    data: Path | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Change the password of a user. The old password is invalid for new authentications.

    Open connections stay until they must authenticate again (connections.max.reauth.ms).
    """
    with _users(bootstrap, properties, data) as users:
        if not _is_known(users, name):
            fail(f"there is no user {name!r}; `headrace user create` creates one")
        _set(users, name, options)
    _tell(name, "changed", as_json=as_json)


def _is_known(users: Users, name: str) -> bool:
    """Return whether a user exists; raise the error if the broker does not answer that."""
    from headrace.errors import ApiError, ErrorCode

    found = users.describe([name])[name]
    if not isinstance(found, ApiError):
        return True
    if found.code is not ErrorCode.RESOURCE_NOT_FOUND:
        raise found
    return False


def _set(users: Users, name: str, options: dict[str, Any]) -> None:
    from headrace.cli.commands.user_passwords import ask_password
    from headrace.clients.flows.scram import salt_password

    password = ask_password(name, options["password_file"])
    mechanisms = options["mechanisms"] or MECHANISMS
    users.set(name, salt_password(password, mechanisms, options["iterations"], os.urandom))


def _tell(name: str, status: str, *, as_json: bool) -> None:
    if as_json:
        print_json({"user": name, "status": status})
    else:
        say(f"user {name}: {status}")


@user.command("list")
@data_option
@client_options
def list_users(
    bootstrap: str, properties: dict[str, str], *, data: Path | None, as_json: bool
) -> None:
    """List the users that have a password."""
    with _users(bootstrap, properties, data, changes=False) as users:
        found = _described(users, None)
    if as_json:
        print_json([_document(each) for each in found])
    else:
        rows = [(each.name, ", ".join(each.iterations)) for each in found]
        print_table(("USER", "MECHANISMS"), rows)


@user.command("describe")
@argument("names", "The users to describe.", nargs=-1, required=True, metavar="NAME...")
@data_option
@client_options
def describe(
    bootstrap: str,
    properties: dict[str, str],
    *,
    names: tuple[str, ...],
    data: Path | None,
    as_json: bool,
) -> None:
    """Show the mechanisms with which users can authenticate. Exit code 1 if a user does not exist."""
    with _users(bootstrap, properties, data) as users:
        found = _described(users, names)
    if as_json:
        print_json([_document(each) for each in found])
        return
    rows = [(each.name, *credential) for each in found for credential in each.iterations.items()]
    print_table(("USER", "MECHANISM", "ITERATIONS"), rows)


def _described(users: Users, names: Sequence[str] | None) -> list[UserDescription]:
    from headrace.errors import ApiError

    found = []
    for name, each in users.describe(names).items():
        if isinstance(each, ApiError):
            fail(f"user {name!r}: {each.message}")
        found.append(each)
    return found


def _document(described: UserDescription) -> dict[str, Any]:
    mechanisms = [
        {"mechanism": mechanism, "iterations": iterations}
        for mechanism, iterations in described.iterations.items()
    ]
    return {"user": described.name, "credentials": mechanisms}


@user.command("delete")
@argument("names", "The users to delete.", nargs=-1, required=True, metavar="NAME...")
@click.option("-y", "--yes", is_flag=True, help="Do not ask for confirmation.")
@data_option
@client_options
def delete(
    bootstrap: str,
    properties: dict[str, str],
    *,
    names: tuple[str, ...],
    yes: bool,
    data: Path | None,
    as_json: bool,
) -> None:
    """Delete users, so that they can no longer authenticate. Their ACLs stay; `headrace acl delete` deletes them.

    Asks for confirmation; without a terminal, --yes is required. Prints one row per user; exit code 1 if one could not
    be deleted.
    """
    if not yes:
        if not sys.stdin.isatty():
            raise click.UsageError("deleting needs --yes without a terminal")
        confirm(f"Delete {', '.join(names)}?")
    with _users(bootstrap, properties, data) as users:
        outcomes = {name: _deleted(users, name) for name in dict.fromkeys(names)}
    print_outcomes("user", outcomes, "deleted", as_json=as_json)


def _deleted(users: Users, name: str) -> ApiError | None:
    from headrace.errors import ApiError

    try:
        users.delete(name)
    except ApiError as error:
        return error
    return None
