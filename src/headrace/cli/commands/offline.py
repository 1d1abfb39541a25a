"""Users and rights in the data directory of a broker that does not run: the first ones, before its first start."""

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
from headrace.cli.output.printing import say
from headrace.clients.flows.acls import Deleted
from headrace.clients.flows.scram import SaltedPassword, UserDescription
from headrace.config.broker import BrokerConfig
from headrace.core.meta_properties import META_FILE
from headrace.errors import ApiError, ConfigError, ErrorCode, StorageError
from headrace.security.acls import AclBinding, AclFilter
from headrace.security.scram import ScramMechanism, credential_of_salted
from headrace.server.entropy import OsEntropy
from headrace.server.stores import METADATA_FILE, open_stores


class _Said:
    """A journal for somebody at a terminal: what went well shows by itself."""

    def info(self, event: str, **fields: object) -> None:
        """Say nothing."""

    def warning(self, event: str, **fields: object) -> None:
        """Say it."""
        say(f"Warning: {event} {fields}")

    def error(self, event: str, **fields: object) -> None:
        """Say it."""
        say(f"Error: {event} {fields}")


@contextlib.contextmanager
def metadata_of(data: Path, *, create: bool) -> Iterator[MetadataWriter]:
    """Hold the metadata of a broker that does not run.

    Args:
        data: Its data directory, the first one if it has several.
        create: Whether to begin a new one where there is none.

    Raises:
        ConfigError: There is none.
        StorageError: The broker runs, or the directory cannot be used.
    """
    if not (data / METADATA_FILE).exists():
        if (data / META_FILE).exists():
            raise ConfigError(
                f"{data} is not the first data directory of its broker: name the one with {METADATA_FILE}"
            )
        if not create:
            raise ConfigError(
                f"{data} is not the data directory of a broker: it has no {METADATA_FILE}"
            )
    try:
        stores = open_stores([data])
    except StorageError as error:
        if "in use" not in str(error):
            raise
        raise StorageError(
            f"a broker runs on {data}: ask it, with -b HOST:PORT in place of --data, or stop it first"
        ) from error
    try:
        writer = MetadataWriter(stores.metadata, BrokerConfig().broker_id, os.urandom(16), _Said())
        writer.begin()
        yield writer
    finally:
        stores.close()


class StoredUsers:
    """Users in a data directory."""

    def __init__(self, writer: MetadataWriter) -> None:
        """Read them.

        Raises:
            StorageError: They cannot be read.
        """
        self._credentials = ScramCredentials(writer, OsEntropy(), _Said())
        self._credentials.load()

    def describe(self, names: Sequence[str] | None) -> dict[str, UserDescription | ApiError]:
        """Find users, or RESOURCE_NOT_FOUND, by name; None finds all."""
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
        """Give a user a password; an earlier one is void.

        Raises:
            ApiError: It could not be stored.
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
        # What is void goes first, as a broker is asked.
        for whose in self._of(name):
            if whose not in new:
                self._credentials.change(whose, None)
        for whose, credential in new.items():
            self._credentials.change(whose, credential)

    def delete(self, name: str) -> None:
        """Delete a user.

        Raises:
            ApiError: RESOURCE_NOT_FOUND, or it could not be stored.
        """
        gone = self._of(name)
        if not gone:
            raise ApiError.for_code(ErrorCode.RESOURCE_NOT_FOUND, f"there is no user {name!r}")
        for whose in gone:
            self._credentials.change(whose, None)

    def _of(self, name: str) -> list[Credential]:
        every = [Credential(name, mechanism) for mechanism in ScramMechanism]
        return [each for each in every if each in self._credentials]


class StoredAcls:
    """Access control entries in a data directory."""

    def __init__(self, writer: MetadataWriter) -> None:
        """Read them.

        Raises:
            StorageError: They cannot be read.
        """
        self._authorizer = Authorizer(BrokerConfig(), writer, _Said())
        self._authorizer.load()

    def find(self, which: AclFilter) -> list[AclBinding]:
        """Return the entries that a filter means, sorted."""
        return sorted(self._authorizer.find(which))

    def create(self, bindings: Sequence[AclBinding]) -> list[ApiError | None]:
        """Create entries; for each None, or why not."""
        return self._authorizer.create(bindings)

    def delete(self, filters: Sequence[AclFilter]) -> list[Deleted]:
        """Delete what each filter means."""
        outcomes = []
        for which in filters:
            gone = self._authorizer.delete(self.find(which))
            errors = [error for error in gone.values() if error is not None]
            done = [binding for binding, error in gone.items() if error is None]
            outcomes.append(Deleted(sorted(done), errors[0] if errors else None))
        return outcomes
