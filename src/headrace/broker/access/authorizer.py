"""The access control lists (ACLs): how they are stored, and the decisions that follow from them.

Each ACL is an entry of its own in the metadata store. Its key is a digest of its content: a second creation of the same
ACL changes nothing, and the size of a key does not depend on names. A change may be too large for one commit of the
store. It then creates denials first and deletes denials last: if a crash interrupts it, the stored ACLs allow nothing
that neither the old nor the new ACLs allow.

The authorizer remembers its decisions, and forgets all of them when any ACL changes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from hashlib import sha256
from typing import Final

from headrace.broker.metadata.metadata_writer import MetadataWriter
from headrace.broker.waiting.steps import CREATION_COST, ENTRY_COST, Work, finished
from headrace.config.authorization import AUTHORIZERS, parse_super_users
from headrace.config.broker import BrokerConfig
from headrace.core.cluster.image import Changes
from headrace.core.cluster.records import ACLS, AclRecord, decode, encode
from headrace.errors import ApiError, ErrorCode, InvalidRequestError, StorageError
from headrace.ports import Delete, Journal, MetadataEntry, Put
from headrace.security.acls import (
    EVERYBODY,
    WILDCARD,
    AclBinding,
    AclFilter,
    Operation,
    PatternType,
    Permission,
    ResourceType,
)
from headrace.security.principal import Principal

ACLS_LIMIT: Final = 10_000
"""The greatest number of ACLs."""
ACL_BYTES_LIMIT: Final = 4096
"""The greatest size of a stored ACL, in bytes."""
CHANGES_PER_COMMIT: Final = 90
"""The number of ACLs in one commit. Every metadata store accepts so many, also in bytes."""
DECISIONS_LIMIT: Final = 10_000
_REMEMBERED_NAME_LIMIT: Final = 256
"""The longest name for which decisions are remembered. Clients choose the names, so longer ones are decided each
time.
"""

Outcome = ApiError | None
_Place = tuple[ResourceType, PatternType, str]
_Question = tuple[Principal, str, Operation, ResourceType, str | None]
"""Principal, host, operation, type and name of the resource. The name None stands for any resource of the type."""


class Authorizer:
    """All ACLs, and the decisions that follow from them."""

    __slots__ = (
        "_acls",
        "_by_key",
        "_by_resource",
        "_decisions",
        "_everyone_if_none",
        "_journal",
        "_metadata",
        "_prefix_lengths",
        "_super_users",
        "active",
        "changes",
    )

    def __init__(self, config: BrokerConfig, metadata: MetadataWriter, journal: Journal) -> None:
        self.active = bool(config.authorizer_class_name)
        """Whether an authorizer is configured. If not, everything is allowed."""
        self._everyone_if_none = config.allow_everyone_if_no_acl_found
        self._super_users = parse_super_users(config.super_users)
        self._metadata = metadata
        self._journal = journal
        self._acls: dict[AclBinding, None] = {}
        self._by_key: dict[str, AclBinding] = {}
        """The ACLs by their keys in the metadata store."""
        self._by_resource: dict[_Place, dict[str, list[AclBinding]]] = {}
        """The ACLs by resource pattern, then by principal. A request may name many resources, and many users may have
        ACLs."""
        self._prefix_lengths: dict[ResourceType, list[int]] = {}
        self._decisions: dict[_Question, bool] = {}
        self.changes = 0
        """The number of changes of the ACLs since the start."""

    def load(self) -> None:
        """Read the stored ACLs, even without an authorizer, so that DescribeAcls shows them later.

        The authorizer follows their changes from now on.

        Raises:
            StorageError: An ACL cannot be read. The broker does not start, because it could miss a denial.
        """
        self._put(self._metadata.image.consume(ACLS, _read, self._apply))
        self._index()

    def _apply(self, changes: Changes[AclBinding]) -> None:
        for key in changes.deletes:
            if (acl := self._by_key.pop(key, None)) is not None:
                del self._acls[acl]
        self._put(changes.puts)
        self._index()
        count = len(changes.puts) + len(changes.deletes)
        self._journal.info("acls_changed", changes=count, acls=len(self._acls))

    def _put(self, acls: Mapping[str, AclBinding]) -> None:
        self._by_key.update(acls)
        self._acls.update(dict.fromkeys(acls.values()))

    def warn(self) -> None:
        """Log a warning if the configuration is hardly intended: it authorizes no user, or all users."""
        if self._super_users and not self.active:
            self._journal.warning(
                "authorizer_off",
                meaning="super.users has no effect: every client is authorized for everything",
                remedy=f"authorizer.class.name={AUTHORIZERS[-1]}",
            )
        if self.active and not (self._super_users or self._acls or self._everyone_if_none):
            self._journal.warning(
                "nobody_may_do_anything",
                meaning="there are neither super users nor access control entries",
                remedy="super.users=User:NAME, or stop and use `headrace acl create --data`",
            )

    # Decisions

    def allows(
        self,
        principal: Principal,
        host: str,
        operation: Operation,
        resource_type: ResourceType,
        name: str,
    ) -> bool:
        """Decide whether a principal at an address is authorized for an operation on a resource."""
        question = (principal, host, operation, resource_type, name)
        known = self._decisions.get(question)
        if known is not None:
            return known
        allowed = self._decide(principal, host, operation, resource_type, name)
        if len(name) <= _REMEMBERED_NAME_LIMIT:
            self._remember(question, allowed=allowed)
        return allowed

    def _decide(
        self,
        principal: Principal,
        host: str,
        operation: Operation,
        resource_type: ResourceType,
        name: str,
    ) -> bool:
        who = str(principal)
        if who in self._super_users:
            return True
        found = allowed = False
        for acls in self._about(resource_type, name):
            found = True
            for acl in (*acls.get(who, ()), *acls.get(EVERYBODY, ())):
                if acl.speaks_of(who, host) and acl.decides(operation):
                    if acl.permission is Permission.DENY:
                        return False
                    allowed = True
        return allowed if found else self._everyone_if_none

    def _about(
        self, resource_type: ResourceType, name: str
    ) -> Iterator[Mapping[str, list[AclBinding]]]:
        """Yield the ACLs that cover a resource, by principal."""
        places: list[_Place] = [(resource_type, PatternType.LITERAL, name)]
        if name != WILDCARD:
            places.append((resource_type, PatternType.LITERAL, WILDCARD))
        for length in self._prefix_lengths.get(resource_type, ()):
            if length > len(name):
                break
            places.append((resource_type, PatternType.PREFIXED, name[:length]))
        yield from (acls for place in places if (acls := self._by_resource.get(place)))

    def allows_any(
        self, principal: Principal, host: str, operation: Operation, resource_type: ResourceType
    ) -> bool:
        """Decide whether a principal is authorized for an operation on at least one resource of a type (KIP-679)."""
        question = (principal, host, operation, resource_type, None)
        known = self._decisions.get(question)
        if known is None:
            # A name that occurs in no ACL shows which wildcards and defaults apply.
            known = self.allows(
                principal, host, operation, resource_type, "hardcode"
            ) or self._allows_one(str(principal), host, operation, resource_type)
            self._remember(question, allowed=known)
        return known

    def _allows_one(
        self, who: str, host: str, operation: Operation, resource_type: ResourceType
    ) -> bool:
        allowed: list[AclBinding] = []
        denied: set[tuple[PatternType, str]] = set()
        for acl in self._acls:
            if (
                acl.resource_type is resource_type
                and acl.operation in {operation, Operation.ALL}
                and acl.speaks_of(who, host)
            ):
                if acl.permission is Permission.DENY:
                    denied.add((acl.pattern_type, acl.resource_name))
                else:
                    allowed.append(acl)
        if (PatternType.LITERAL, WILDCARD) in denied:
            return False
        lengths = {len(name) for pattern, name in denied if pattern is PatternType.PREFIXED}
        return any(not _is_taken(acl, denied, lengths) for acl in allowed)

    def _remember(self, question: _Question, *, allowed: bool) -> None:
        if len(self._decisions) >= DECISIONS_LIMIT:
            self._decisions.clear()
        self._decisions[question] = allowed

    # Changes

    def __len__(self) -> int:
        return len(self._acls)

    def find(self, wanted: AclFilter) -> list[AclBinding]:
        """Return the ACLs that match a filter."""
        return [acl for acl in self._acls if wanted.matches(acl)]

    def finding(self, wanted: AclFilter) -> Work[list[AclBinding]]:
        """Return the ACLs that match a filter, in steps."""
        found = []
        for acl in list(self._acls):
            if wanted.matches(acl):
                found.append(acl)
            yield ENTRY_COST // 5
        return found

    def create(self, acls: Sequence[AclBinding]) -> list[Outcome]:
        """Create ACLs at once; see `creating`."""
        return finished(self.creating(acls))

    def creating(self, acls: Sequence[AclBinding]) -> Work[list[Outcome]]:
        """Create the valid ACLs of some, and refuse the others. They are durable and in force when the work is done.

        Returns:
            For each ACL the error, None if it was created.
        """
        new: dict[AclBinding, Outcome] = {}
        outcomes: dict[AclBinding, Outcome] = {}
        for acl in acls:
            outcomes[acl] = self._refusal(acl, len(new))
            if outcomes[acl] is None and acl not in self._acls:
                new[acl] = None
            yield 2 * ENTRY_COST
        # Denials first.
        for some in _in_commits(sorted(new, key=lambda acl: acl.permission)):
            # Other requests may have created some since the first check.
            error = self._refusal(some[-1], len(some) - 1)
            if error is None:
                puts = [Put(_key(acl), encode(AclRecord.of(acl))) for acl in some]
                error = yield from self._commit(puts)
            outcomes.update(dict.fromkeys(some, error))
            yield self._commit_cost
        return [outcomes[acl] for acl in acls]

    @property
    def _commit_cost(self) -> int:
        """The cost of a commit, which writes a record and builds the index of all ACLs again."""
        return CREATION_COST + len(self._acls) * ENTRY_COST // 10

    def _refusal(self, acl: AclBinding, further: int) -> Outcome:
        problem = acl.problem()
        if problem is not None:
            return InvalidRequestError(problem)
        if len(encode(AclRecord.of(acl))) > ACL_BYTES_LIMIT:
            return InvalidRequestError(
                f"the names of an ACL are longer than {ACL_BYTES_LIMIT} bytes"
            )
        if acl not in self._acls and len(self._acls) + further >= ACLS_LIMIT:
            return ApiError(ErrorCode.POLICY_VIOLATION, f"there are {ACLS_LIMIT} ACLs already")
        return None

    def delete(self, acls: Iterable[AclBinding]) -> dict[AclBinding, Outcome]:
        """Delete ACLs at once; see `deleting`."""
        return finished(self.deleting(acls))

    def deleting(self, acls: Iterable[AclBinding]) -> Work[dict[AclBinding, Outcome]]:
        """Delete ACLs. The deletion is durable and in force when the work is done.

        Returns:
            For each ACL the error, None if it was deleted.
        """
        outcomes: dict[AclBinding, Outcome] = {}
        # Denials last.
        gone = sorted(set(acls), key=lambda acl: acl.permission, reverse=True)
        for some in _in_commits(gone):
            error = yield from self._commit([Delete(_key(acl)) for acl in some])
            outcomes.update(dict.fromkeys(some, error))
            yield self._commit_cost
        return outcomes

    def _commit(self, operations: Sequence[Put | Delete]) -> Work[Outcome]:
        try:
            yield from self._metadata.committing([], operations)
        except ApiError as error:
            return error
        return None

    def _index(self) -> None:
        by_resource: dict[_Place, dict[str, list[AclBinding]]] = {}
        lengths: dict[ResourceType, set[int]] = defaultdict(set)
        for acl in self._acls:
            place = acl.resource_type, acl.pattern_type, acl.resource_name
            by_resource.setdefault(place, {}).setdefault(acl.principal, []).append(acl)
            if acl.pattern_type is PatternType.PREFIXED:
                lengths[acl.resource_type].add(len(acl.resource_name))
        self._by_resource = by_resource
        self._prefix_lengths = {kind: sorted(found) for kind, found in lengths.items()}
        self._decisions.clear()
        self.changes += 1


def _is_taken(
    allow: AclBinding, denied: Collection[tuple[PatternType, str]], lengths: Iterable[int]
) -> bool:
    """Return whether denials cover everything that an ACL allows: denials of the same name, or of a prefix."""
    pattern, name = allow.pattern_type, allow.resource_name
    if pattern is PatternType.LITERAL:
        if name == WILDCARD:
            return False
        if (pattern, name) in denied:
            return True
    return any((PatternType.PREFIXED, name[:length]) in denied for length in lengths)


def _in_commits(acls: Sequence[AclBinding]) -> Iterator[Sequence[AclBinding]]:
    for start in range(0, len(acls), CHANGES_PER_COMMIT):
        yield acls[start : start + CHANGES_PER_COMMIT]


def _read(entry: MetadataEntry) -> AclBinding:
    acl = decode(entry, AclRecord).binding()
    problem = acl.problem()
    if problem is not None or entry.key != _key(acl):
        raise StorageError(f"{entry.key}: {problem or 'not the key of this ACL'}")
    return acl


def _key(acl: AclBinding) -> str:
    return ACLS + sha256(encode(AclRecord.of(acl))).hexdigest()
