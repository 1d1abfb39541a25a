"""Client quotas: the stored quotas of entities, and the quota that applies to a client.

A quota belongs to an entity: a user, a client id, or both together. `<default>` in place of a name stands for all names
without a quota of their own. The first of these entities that has the quota in question applies to a client:

    1. user and client id        4. user <default> and client id       7. client id
    2. user, client id <default> 5. both <default>                     8. client id <default>
    3. user                      6. user <default>

With 3 and 6 all clients of a user share the quota. With 7 and 8 all users of a client id share it.

The quota of an address (ip), or of `<default>` for all addresses without one, is the number of connections that the
address may open in a second.
"""

from __future__ import annotations

import ipaddress
import math
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache, partial
from typing import Final, NamedTuple
from urllib.parse import quote

from headrace.broker.metadata.commit_lane import Change
from headrace.broker.metadata.metadata_writer import MetadataWriter, replacement
from headrace.broker.waiting.steps import Work
from headrace.core.cluster.image import Changes
from headrace.core.cluster.records import (
    CLIENT_QUOTAS,
    ClientQuotaRecord,
    decode,
    encode,
)
from headrace.errors import ApiError, ErrorCode, InvalidRequestError, StorageError
from headrace.ports import Journal, MetadataEntry

USER: Final = "user"
CLIENT_ID: Final = "client-id"
IP: Final = "ip"
PRODUCER_BYTE_RATE: Final = "producer_byte_rate"
CONSUMER_BYTE_RATE: Final = "consumer_byte_rate"
REQUEST_PERCENTAGE: Final = "request_percentage"
CONNECTION_CREATION_RATE: Final = "connection_creation_rate"
_BOUNDS: Final = {PRODUCER_BYTE_RATE: 63, CONSUMER_BYTE_RATE: 63, REQUEST_PERCENTAGE: None}
"""The quotas of clients. A quota that is a whole number is below 2 to the power of its value here."""
_BOUNDS_OF_ADDRESSES: Final = {CONNECTION_CREATION_RATE: 31}
_NOT_SUPPORTED: Final = "controller_mutation_rate"

ENTITIES_LIMIT: Final = 10_000
"""The greatest number of entities with quotas."""
_NAME_CHARACTERS_LIMIT: Final = 450
"""The length of the longest name, in characters of its form in keys of the store. Two such names fit into a key."""

EntityParts = tuple[tuple[str, str | None], ...]
"""An entity in requests: pairs of type and name. The name None stands for `<default>`."""


class _Default:
    """The name `<default>`, which stands for all names without a quota."""

    def __repr__(self) -> str:
        return "<default>"


DEFAULT: Final = _Default()
Name = str | _Default | None


class Entity(NamedTuple):
    """The owner of a quota; None for a type that the entity does not have."""

    user: Name = None
    client_id: Name = None
    ip: Name = None
    """An address. An entity with an address has no other type."""

    @property
    def parts(self) -> EntityParts:
        """The entity in the form of requests and responses."""
        return tuple(
            (kind, None if isinstance(name, _Default) else name)
            for kind, name in ((USER, self.user), (CLIENT_ID, self.client_id), (IP, self.ip))
            if name is not None
        )


class Quota(NamedTuple):
    """The quota that applies to a client, and the entity that it belongs to."""

    limit: float
    user: str | None
    """The user whose clients share the quota, together with `client_id`. None if all users share it."""
    client_id: str | None


def entity_of(parts: EntityParts) -> Entity:
    """Parse an entity of a request.

    Raises:
        ApiError: INVALID_REQUEST: such an entity does not exist.
    """
    names: dict[str, Name] = {}
    for kind, name in parts:
        if kind not in {USER, CLIENT_ID, IP}:
            raise InvalidRequestError(f"no entity has the type {kind[:40]!r}")
        if kind in names:
            raise InvalidRequestError(f"an entity has one {kind}")
        if name is not None and not 0 < len(quote(name, safe="")) <= _NAME_CHARACTERS_LIMIT:
            raise InvalidRequestError(f"the name of a {kind} is empty or too long")
        names[kind] = DEFAULT if name is None else name
    if not names:
        raise InvalidRequestError("the entity has no parts")
    if IP in names and len(names) > 1:
        raise InvalidRequestError("an entity with an ip has no user and no client-id")
    address = names.get(IP)
    if isinstance(address, str) and not canonical_address(address):
        raise InvalidRequestError(f"{address[:60]!r} is not an IP address")
    return Entity(names.get(USER), names.get(CLIENT_ID), address)


@lru_cache(2 * ENTITIES_LIMIT)
def canonical_address(text: str) -> str:
    """Return the canonical form of an IP address; "" if it is none. An IPv4 address in IPv6 form becomes IPv4."""
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return ""
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return str(mapped or address)


def check_quota(entity: Entity, name: str, value: float) -> None:
    """Refuse an unknown quota, or an invalid value.

    Raises:
        ApiError: INVALID_REQUEST.
    """
    bounds = _BOUNDS if entity.ip is None else _BOUNDS_OF_ADDRESSES
    if name == _NOT_SUPPORTED:
        raise InvalidRequestError(f"{name} is not implemented")
    if name not in bounds:
        whose = "clients" if entity.ip is None else "addresses (ip)"
        raise InvalidRequestError(f"there is no quota {name[:40]!r} of {whose}")
    bits = bounds[name]
    if not (math.isfinite(value) and value > 0):
        raise InvalidRequestError(f"{name} must be greater than 0, got {value}")
    if bits is not None and (value != math.floor(value) or value >= 2.0**bits):
        raise InvalidRequestError(f"{name} must be a whole number below 2^{bits}, got {value}")


class _Quotas(NamedTuple):
    """The quotas of an entity."""

    entity: Entity
    values: Mapping[str, float]


class ClientQuotas:
    """All quotas, as they are stored and as they apply."""

    __slots__ = ("_by_key", "_connection_rates", "_entities", "_journal", "_metadata", "active")

    def __init__(self, metadata: MetadataWriter, journal: Journal) -> None:
        self._metadata = metadata
        self._journal = journal
        self._entities: dict[Entity, Mapping[str, float]] = {}
        self._by_key: dict[str, Entity] = {}
        """The entities by their keys in the metadata store."""
        self._connection_rates: dict[str, float] = {}
        """The allowed connections per second by address; the key "" stands for all other addresses."""
        self.active = False
        """Whether any client quota exists. Otherwise the broker measures nothing."""

    def load(self) -> None:
        """Read the stored quotas, and follow their changes from now on.

        Raises:
            StorageError: A quota cannot be read.
        """
        for key, quotas in self._metadata.image.consume(CLIENT_QUOTAS, _read, self._apply).items():
            self._put(key, quotas)
        self._count()

    def _apply(self, changes: Changes[_Quotas]) -> None:
        for key in changes.deletes:
            if (entity := self._by_key.pop(key, None)) is not None:
                del self._entities[entity]
                self._report(entity)
        for key, quotas in changes.puts.items():
            self._put(key, quotas)
            self._report(quotas.entity)
        self._count()

    def _put(self, key: str, quotas: _Quotas) -> None:
        self._by_key[key] = quotas.entity
        self._entities[quotas.entity] = quotas.values

    def _report(self, entity: Entity) -> None:
        self._journal.info(
            "client_quotas_changed", entity=str(entity.parts), quotas=dict(self.get(entity))
        )

    def _count(self) -> None:
        """Compute `active` and the rates of addresses again, after a change."""
        self.active = any(entity.ip is None for entity in self._entities)
        self._connection_rates = {
            canonical_address(entity.ip) if isinstance(entity.ip, str) else "": quotas[
                CONNECTION_CREATION_RATE
            ]
            for entity, quotas in self._entities.items()
            if entity.ip is not None
        }

    def __iter__(self) -> Iterator[tuple[Entity, Mapping[str, float]]]:
        return iter(self._entities.items())

    def get(self, entity: Entity) -> Mapping[str, float]:
        """Return the quotas of one entity."""
        return self._entities.get(entity, {})

    def change(
        self, entity: Entity, merge: Callable[[Mapping[str, float]], Mapping[str, float]]
    ) -> Work[None]:
        """Change the quotas of an entity. The change is in force when the work is done.

        Args:
            entity: The entity.
            merge: Returns the new quotas for the stored ones; an empty mapping removes all. It is called again if
                another request was faster.

        Raises:
            ApiError: There are too many entities, or the quotas could not be stored.
        """
        yield from self._metadata.merging(partial(self._changed, entity, merge))

    def _changed(
        self, entity: Entity, merge: Callable[[Mapping[str, float]], Mapping[str, float]]
    ) -> Change | None:
        key = _key(entity)
        entry = self._metadata.image.get(key)
        present = {} if entry is None else _read(entry).values
        quotas = merge(present)
        if quotas == present:
            return None
        if quotas and entry is None and len(self._entities) >= ENTITIES_LIMIT:
            raise ApiError(
                ErrorCode.POLICY_VIOLATION, f"{ENTITIES_LIMIT} entities have quotas already"
            )
        record = ClientQuotaRecord(dict(entity.parts), dict(quotas))
        return replacement(key, entry, encode(record) if quotas else None)

    def connection_rate(self, address: str) -> float | None:
        """Return how many connections an address may open in a second; None without a quota."""
        rates = self._connection_rates
        if not rates:
            return None
        own = rates.get(canonical_address(address) or address)
        return rates.get("") if own is None else own

    def find(self, name: str, user: str, client_id: str) -> Quota | None:
        """Return the quota that applies to a client; None if there is none."""
        for entity in (
            Entity(user, client_id),
            Entity(user, DEFAULT),
            Entity(user),
            Entity(DEFAULT, client_id),
            Entity(DEFAULT, DEFAULT),
            Entity(DEFAULT),
            Entity(None, client_id),
            Entity(None, DEFAULT),
        ):
            limit = self._entities.get(entity, {}).get(name)
            if limit is not None:
                return Quota(
                    limit,
                    None if entity.user is None else user,
                    None if entity.client_id is None else client_id,
                )
        return None


def _key(entity: Entity) -> str:
    # Names may contain anything. In this form no two entities have the same key, and no key is too long.
    words = [
        f"{kind}={'<default>' if name is None else quote(name, safe='')}"
        for kind, name in entity.parts
    ]
    return CLIENT_QUOTAS + "&".join(words)


def _read(entry: MetadataEntry) -> _Quotas:
    record = decode(entry, ClientQuotaRecord)
    try:
        entity = entity_of(tuple(record.entity.items()))
        for name, value in record.quotas.items():
            check_quota(entity, name, value)
    except ApiError as error:
        raise StorageError(f"{entry.key}: {error.message}") from error
    return _Quotas(entity, record.quotas)
