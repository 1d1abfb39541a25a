"""`headrace acl`: access control entries."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn, Protocol

import click

from headrace.cli.arguments.connection import open_client
from headrace.cli.arguments.options import client_options, data_option
from headrace.cli.command_group import CommandGroup
from headrace.cli.commands.acl_bindings import Wanted, acl_options, word
from headrace.cli.output.printing import confirm, fail, print_json, print_table, say

if TYPE_CHECKING:
    from headrace.clients.blocking import BlockingClient
    from headrace.clients.flows.acls import Deleted
    from headrace.errors import ApiError
    from headrace.security.acls import AclBinding, AclFilter

AUTHORIZER: Final = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
COLUMNS: Final = ("RESOURCE", "NAME", "PATTERN", "PRINCIPAL", "HOST", "OPERATION", "PERMISSION")


class Acls(Protocol):
    """Access control entries: those of a running broker, or those in a data directory."""

    def find(self, which: AclFilter) -> list[AclBinding]:
        """Return the entries that match a filter, sorted."""

    def create(self, bindings: Sequence[AclBinding]) -> list[ApiError | None]:
        """Create entries; return None or an error for each."""

    def delete(self, filters: Sequence[AclFilter]) -> list[Deleted]:
        """Delete the entries that match each filter."""


class _AskedAcls:
    """The access control entries of a running broker."""

    def __init__(self, client: BlockingClient) -> None:
        self._client = client

    def find(self, which: AclFilter) -> list[AclBinding]:
        from headrace.clients.flows import acls

        return self._client.run(acls.describe_acls(which))

    def create(self, bindings: Sequence[AclBinding]) -> list[ApiError | None]:
        from headrace.clients.flows import acls

        return self._client.run(acls.create_acls(bindings))

    def delete(self, filters: Sequence[AclFilter]) -> list[Deleted]:
        from headrace.clients.flows import acls

        return self._client.run(acls.delete_acls(filters))


@contextlib.contextmanager
def _acls(
    bootstrap: str,
    properties: dict[str, str],
    data: Path | None,
    *,
    create: bool = False,
    changes: bool = True,
) -> Iterator[Acls]:
    """Open the entries of a running broker or of a data directory."""
    from headrace.errors import ApiError

    if data is not None:
        from headrace.cli.commands.offline import StoredAcls, metadata_of

        with metadata_of(data, create=create, changes=changes) as writer:
            yield StoredAcls(writer)
        return
    try:
        with open_client(bootstrap, properties) as client:
            yield _AskedAcls(client)
    except ApiError as error:
        _refused(error)


def _refused(error: ApiError) -> NoReturn:
    from headrace.errors import ErrorCode

    if error.code is ErrorCode.SECURITY_DISABLED:
        fail(
            "the broker has no authorizer, so that every client may do everything. Configure one with "
            f"--config authorizer.class.name={AUTHORIZER} and --config super.users=User:NAME"
        )
    fail(f"{error.code.name}: {error.message}")


@click.group(cls=CommandGroup)
def acl() -> None:
    """Create, list and delete access control entries, on Headrace or any Kafka.

    With an authorizer the broker denies every operation that no entry allows. Entries that deny take precedence over
    entries that allow. Super users may do everything.
    """


@acl.command("create")
@acl_options
@data_option
@client_options
def create(
    bootstrap: str, properties: dict[str, str], *, wanted: Wanted, data: Path | None, as_json: bool
) -> None:
    """Create entries that allow or deny operations.

    Creates an entry for every combination of the principals, operations and resources given. Existing entries stay
    unchanged. Prints one row per entry; exit code 1 if one could not be created.
    """
    bindings = wanted.bindings()
    with _acls(bootstrap, properties, data, create=True) as acls:
        outcomes = acls.create(bindings)
    _print(dict(zip(bindings, outcomes, strict=True)), "created", as_json=as_json)


@acl.command("list")
@acl_options
@data_option
@client_options
def list_acls(
    bootstrap: str, properties: dict[str, str], *, wanted: Wanted, data: Path | None, as_json: bool
) -> None:
    """List entries: all, or those that match all given options.

    A resource name finds every entry that applies to the resource, prefixes and wildcards included. With --prefixed it
    finds the entries with that prefix.
    """
    with _acls(bootstrap, properties, data, changes=False) as acls:
        found = _find(acls, wanted.filters(matching=True))
    _print(dict.fromkeys(found), None, as_json=as_json)


@acl.command("delete")
@acl_options
@click.option("-y", "--yes", is_flag=True, help="Do not ask for confirmation.")
@click.option("--dry-run", is_flag=True, help="Show what would be deleted; delete nothing.")
@data_option
@client_options
def delete(
    bootstrap: str,
    properties: dict[str, str],
    *,
    wanted: Wanted,
    data: Path | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Delete entries. The options of `create` delete the entries that it created; omitted options match everything.

    Shows the entries and asks for confirmation. Exit code 1 if one could not be deleted.
    """
    if wanted.is_empty:
        raise click.UsageError(
            "name the entries with at least one option, such as --topic or --allow-principal"
        )
    if not (options["yes"] or options["dry_run"] or sys.stdin.isatty()):
        raise click.UsageError("deleting needs --yes or --dry-run without a terminal")
    with _acls(bootstrap, properties, data) as acls:
        found = _find(acls, wanted.filters(matching=False))
        if options["dry_run"] or not found:
            _print(dict.fromkeys(found), None, as_json=as_json)
            return
        if not options["yes"]:
            print_table(COLUMNS, map(_row, found), to_stderr=True)
            confirm(f"Delete {len(found)} entries?")
        # Delete exactly the entries that were shown, not entries created since.
        outcomes = acls.delete([_exactly(binding) for binding in found])
    errors = [outcome.error for outcome in outcomes]
    _print(dict(zip(found, errors, strict=True)), "deleted", as_json=as_json)


def _find(acls: Acls, filters: Sequence[AclFilter]) -> list[AclBinding]:
    return sorted({binding for which in filters for binding in acls.find(which)})


def _exactly(binding: AclBinding) -> AclFilter:
    from headrace.security.acls import AclFilter

    return AclFilter(*binding)


def _row(binding: AclBinding) -> tuple[str, ...]:
    return (
        binding.resource_type.name,
        binding.resource_name,
        binding.pattern_type.name,
        binding.principal,
        binding.host,
        word(binding.operation),
        binding.permission.name,
    )


def _print(outcomes: dict[AclBinding, ApiError | None], done: str | None, *, as_json: bool) -> None:
    """Print a row for each entry, with the outcome of a change; end with exit code 1 if a change failed."""
    if as_json:
        print_json([_document(each, error, done) for each, error in outcomes.items()])
    elif done is None:
        print_table(COLUMNS, map(_row, outcomes))
    else:
        rows = [
            (*_row(each), done if error is None else error.code.name)
            for each, error in outcomes.items()
        ]
        print_table((*COLUMNS, "STATUS"), rows)
    failed = [error for error in outcomes.values() if error is not None]
    if not as_json:
        for text in dict.fromkeys(error.message for error in failed):
            say(f"Error: {text}")
    if failed:
        raise SystemExit(1)


def _document(binding: AclBinding, error: ApiError | None, done: str | None) -> dict[str, Any]:
    names = [column.lower() for column in COLUMNS]
    document: dict[str, Any] = dict(zip(names, _row(binding), strict=True))
    if done is not None:
        document["status"] = done if error is None else "failed"
        document["error"] = None if error is None else error.code.name
        document["message"] = None if error is None else error.message
    return document
