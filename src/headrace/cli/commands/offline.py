"""Users and ACLs in the data directory of a stopped broker, for example before its first start."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from headrace.broker.access.authorizer import Authorizer
from headrace.broker.access.credentials import (
    USER_CHARACTERS_LIMIT,
    Credential,
    ScramCredentials,
    user_name_fits,
)
from headrace.broker.metadata.metadata_writer import MetadataWriter
from headrace.broker.waiting.steps import finished
from headrace.cli.output.printing import say
from headrace.clients.flows.acls import Deleted
from headrace.clients.flows.scram import SaltedPassword, UserDescription
from headrace.config.broker import BrokerConfig
from headrace.core.meta_properties import META_FILE
from headrace.errors import ApiError, ConfigError, ErrorCode, StorageError
from headrace.metadata_stores.sqlite import SqliteMetadataStore
from headrace.ports import MetadataBatch, MetadataStore
from headrace.security.acls import AclBinding, AclFilter
from headrace.security.scram import ScramMechanism, credential_of_salted
from headrace.server.data_directory import METADATA_FILE
from headrace.server.entropy import OsEntropy
from headrace.server.stores import open_stores


class _Said:
    """A journal that prints warnings and errors to the terminal, and no other events."""

    def info(self, event: str, **fields: object) -> None:
        """Ignore an event that needs no action."""

    def warning(self, event: str, **fields: object) -> None:
        """Print a warning to standard error."""
        say(f"Warning: {event} {fields}")

    def error(self, event: str, **fields: object) -> None:
        """Print an error to standard error."""
        say(f"Error: {event} {fields}")


@contextlib.contextmanager
def metadata_of(data: Path, *, create: bool, changes: bool) -> Iterator[MetadataWriter]:
    """Open and lock the metadata of a stopped broker.

    Args:
        data: The data directory of the broker; the first one if it has several.
        create: Whether to create the metadata if there is none.
        changes: Whether the command changes the metadata. If not, nothing is written, and the metadata of an earlier
            version stay readable for that version.

    Raises:
        ConfigError: The directory has no metadata.
        StorageError: The broker is running, or the directory cannot be used.
    """
    if not (data / METADATA_FILE).exists():
        if (data / META_FILE).exists():
            raise ConfigError(
                f"{data} is not the first data directory of its broker: name the directory with {METADATA_FILE}"
            )
        if not create:
            raise ConfigError(
                f"{data} is not the data directory of a broker: it has no {METADATA_FILE}"
            )
    with _errors_of_running_brokers(data), contextlib.ExitStack() as opened:
        if (data / METADATA_FILE).exists():
            store = SqliteMetadataStore(data / METADATA_FILE, upgrades=False)
            if not changes:
                opened.callback(store.close)
                writer = _writer(store)
                writer.image.apply(MetadataBatch(snapshot=True, puts=store.entries()))
                yield writer
                return
            if store.is_outdated:
                say(f"{data} is upgraded: earlier versions of Headrace cannot read it any more")
            store.close()
        stores = open_stores([data])
        opened.callback(stores.close)
        writer = _writer(stores.metadata)
        writer.begin()
        yield writer


def _writer(store: MetadataStore) -> MetadataWriter:
    return MetadataWriter(store, BrokerConfig().broker_id, os.urandom(16), _Said())


@contextlib.contextmanager
def _errors_of_running_brokers(data: Path) -> Iterator[None]:
    """Explain the error of a directory that a broker uses."""
    try:
        yield
    except StorageError as error:
        if "in use" not in str(error):
            raise
        raise StorageError(
            f"a broker is running on {data}: use -b HOST:PORT instead of --data, or stop the broker first"
        ) from error


class StoredUsers:
    """The users stored in a data directory."""

    def __init__(self, writer: MetadataWriter) -> None:
        """Read the users.

        Raises:
            StorageError: The users cannot be read.
        """
        self._credentials = ScramCredentials(writer, OsEntropy(), _Said())
        self._credentials.load()

    def describe(self, names: Sequence[str] | None) -> dict[str, UserDescription | ApiError]:
        """Return users by name, or RESOURCE_NOT_FOUND for a name; None returns all users."""
        known: dict[str, dict[str, int]] = {}
        for (user, mechanism), credential in sorted(self._credentials):
            known.setdefault(user, {})[mechanism.sasl_name] = credential.iterations
        return {
            name: UserDescription(name, known[name])
            if name in known
            else ApiError.for_code(ErrorCode.RESOURCE_NOT_FOUND, f"there is no user {name!r}")
            for name in (known if names is None else names)
        }

    def set(self, name: str, passwords: Sequence[SaltedPassword]) -> None:
        """Set the password of a user; it replaces an earlier one.

        Raises:
            ApiError: The password could not be stored.
        """
        if not user_name_fits(name):
            raise ApiError.for_code(
                ErrorCode.UNACCEPTABLE_CREDENTIAL,
                f"a user's name has 1 to {USER_CHARACTERS_LIMIT} characters",
            )
        new = {
            Credential(name, each.mechanism): credential_of_salted(
                each.value, each.mechanism, each.iterations, each.salt
            )
            for each in passwords
        }
        # Old credentials are deleted first, in the same order as in requests to a broker.
        for whose in self._of(name):
            if whose not in new:
                finished(self._credentials.change(whose, None))
        for whose, credential in new.items():
            finished(self._credentials.change(whose, credential))

    def delete(self, name: str) -> None:
        """Delete a user and its credentials.

        Raises:
            ApiError: RESOURCE_NOT_FOUND, or the deletion could not be stored.
        """
        gone = self._of(name)
        if not gone:
            raise ApiError.for_code(ErrorCode.RESOURCE_NOT_FOUND, f"there is no user {name!r}")
        for whose in gone:
            finished(self._credentials.change(whose, None))

    def _of(self, name: str) -> list[Credential]:
        every = [Credential(name, mechanism) for mechanism in ScramMechanism]
        return [each for each in every if each in self._credentials]


class StoredAcls:
    """The access control entries stored in a data directory."""

    def __init__(self, writer: MetadataWriter) -> None:
        """Read the access control entries.

        Raises:
            StorageError: The entries cannot be read.
        """
        self._authorizer = Authorizer(BrokerConfig(), writer, _Said())
        self._authorizer.load()

    def find(self, which: AclFilter) -> list[AclBinding]:
        """Return the entries that match a filter, sorted."""
        return sorted(self._authorizer.find(which))

    def create(self, bindings: Sequence[AclBinding]) -> list[ApiError | None]:
        """Create entries; return None or an error for each."""
        return self._authorizer.create(bindings)

    def delete(self, filters: Sequence[AclFilter]) -> list[Deleted]:
        """Delete the entries that match each filter."""
        outcomes = []
        for which in filters:
            gone = self._authorizer.delete(self.find(which))
            errors = [error for error in gone.values() if error is not None]
            done = [binding for binding, error in gone.items() if error is None]
            outcomes.append(Deleted(sorted(done), errors[0] if errors else None))
        return outcomes
