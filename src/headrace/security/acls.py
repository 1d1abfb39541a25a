"""Access control lists (ACLs): which principal is authorized for which operation on which resource.

The words and numbers are Kafka's. A binding allows or denies one operation to one principal, from one host or from any
host. Its resource pattern is LITERAL (the resource of that name, or all of a type with the name `*`) or PREFIXED (all
resources whose names have that prefix). A denial wins over a permission. Some operations include others: the permission
for such an operation allows the included operations too, but its denial does not deny them.
"""

from __future__ import annotations

from enum import IntEnum
from ipaddress import ip_address
from typing import Final, NamedTuple

from headrace.security.principal import USER

WILDCARD: Final = "*"
"""Any resource, as the name of a LITERAL binding; or any host."""
EVERYBODY: Final = f"{USER}:{WILDCARD}"
"""Any user, as the principal of a binding."""
CLUSTER_NAME: Final = "kafka-cluster"
"""The only name of the resource type CLUSTER."""


class Operation(IntEnum):
    """Kafka's `AclOperation`: an operation on a resource."""

    UNKNOWN = 0
    ANY = 1
    ALL = 2
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12
    CREATE_TOKENS = 13
    DESCRIBE_TOKENS = 14
    TWO_PHASE_COMMIT = 15

    __hash__ = int.__hash__  # decisions are looked up by this hash; that of an enum is slow

    @classmethod
    def _missing_(cls, value: object) -> Operation | None:
        return cls.UNKNOWN if isinstance(value, int) else None


class ResourceType(IntEnum):
    """Kafka's `ResourceType`: the type of a resource."""

    UNKNOWN = 0
    ANY = 1
    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5
    DELEGATION_TOKEN = 6
    USER = 7

    __hash__ = int.__hash__  # decisions are looked up by this hash; that of an enum is slow

    @classmethod
    def _missing_(cls, value: object) -> ResourceType | None:
        return cls.UNKNOWN if isinstance(value, int) else None


class PatternType(IntEnum):
    """Kafka's `PatternType`: the meaning of a binding's resource name. ANY and MATCH are for filters only."""

    UNKNOWN = 0
    ANY = 1
    MATCH = 2
    LITERAL = 3
    PREFIXED = 4

    @classmethod
    def _missing_(cls, value: object) -> PatternType | None:
        return cls.UNKNOWN if isinstance(value, int) else None


class Permission(IntEnum):
    """Kafka's `AclPermissionType`: whether an ACL allows or denies."""

    UNKNOWN = 0
    ANY = 1
    DENY = 2
    ALLOW = 3

    @classmethod
    def _missing_(cls, value: object) -> Permission | None:
        return cls.UNKNOWN if isinstance(value, int) else None


_RESOURCE_TYPES: Final = tuple(ResourceType)[2:]
_PATTERN_TYPES: Final = (PatternType.LITERAL, PatternType.PREFIXED)
_OPERATIONS: Final = tuple(Operation)[2:]
_PERMISSIONS: Final = (Permission.DENY, Permission.ALLOW)
_IMPLIED_BY: Final = {
    Operation.DESCRIBE: frozenset(
        {Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER}
    ),
    Operation.DESCRIBE_CONFIGS: frozenset({Operation.ALTER_CONFIGS}),
}
"""The operations that include an operation: the permission for any of them allows it."""


class AclBinding(NamedTuple):
    """One access control entry."""

    resource_type: ResourceType
    resource_name: str
    pattern_type: PatternType
    principal: str
    """The principal as Kafka writes it: `User:alice`, or `User:*` for all users."""
    host: str
    """The address of a client, or `*` for any address."""
    operation: Operation
    permission: Permission

    def covers(self, resource_type: ResourceType, name: str) -> bool:
        """Return whether the binding applies to a resource."""
        if self.resource_type != resource_type:
            return False
        if self.pattern_type is PatternType.PREFIXED:
            return name.startswith(self.resource_name)
        return self.resource_name in {name, WILDCARD}

    def speaks_of(self, principal: str, host: str) -> bool:
        """Return whether the binding applies to a principal at an address."""
        return self.principal in {principal, EVERYBODY} and (
            self.host in {host, WILDCARD} or _same_address(self.host, host)
        )

    def decides(self, operation: Operation) -> bool:
        """Return whether the binding allows or denies the operation.

        It names the operation, or one that includes it.
        """
        if self.operation in {operation, Operation.ALL}:
            return True
        return self.permission is Permission.ALLOW and self.operation in _IMPLIED_BY.get(
            operation, ()
        )

    def problem(self) -> str | None:
        """Return why the binding is invalid; None if it is valid."""
        for value, allowed in (
            (self.resource_type, _RESOURCE_TYPES),
            (self.pattern_type, _PATTERN_TYPES),
            (self.operation, _OPERATIONS),
            (self.permission, _PERMISSIONS),
        ):
            if value not in allowed:
                names = ", ".join(word.name for word in allowed)
                return f"{type(value).__name__} {value.name}: an ACL has one of {names}"
        if not self.resource_name:
            return "the resource name is empty"
        if self.resource_type is ResourceType.CLUSTER and self.resource_name != CLUSTER_NAME:
            return f"the only name of the resource CLUSTER is {CLUSTER_NAME}"
        if ":" not in self.principal:
            return (
                f"the principal {self.principal[:100]!r} has no type: write User:name, "
                f"or {EVERYBODY} for everybody"
            )
        return None


def _same_address(one: str, other: str) -> bool:
    """Compare IPv6 addresses, which have several spellings. Kafka writes them without abbreviation."""
    if ":" not in one or ":" not in other:
        return False
    try:
        return ip_address(one) == ip_address(other)
    except ValueError:
        return False


class AclFilter(NamedTuple):
    """A filter for bindings. None and ANY match everything."""

    resource_type: ResourceType = ResourceType.ANY
    resource_name: str | None = None
    pattern_type: PatternType = PatternType.ANY
    """LITERAL and PREFIXED match bindings with exactly this name; MATCH matches all bindings that apply to a resource
    of this name."""
    principal: str | None = None
    host: str | None = None
    operation: Operation = Operation.ANY
    permission: Permission = Permission.ANY

    @property
    def is_unknown(self) -> bool:
        """Whether the filter has a number that this version does not know."""
        return (
            self.resource_type is ResourceType.UNKNOWN
            or self.pattern_type is PatternType.UNKNOWN
            or self.operation is Operation.UNKNOWN
            or self.permission is Permission.UNKNOWN
        )

    def matches(self, acl: AclBinding) -> bool:
        """Return whether the filter matches a binding."""
        return (
            self.resource_type in {ResourceType.ANY, acl.resource_type}
            and self.principal in {None, acl.principal}
            and self.host in {None, acl.host}
            and self.operation in {Operation.ANY, acl.operation}
            and self.permission in {Permission.ANY, acl.permission}
            and self._matches_pattern(acl)
        )

    def _matches_pattern(self, acl: AclBinding) -> bool:
        if self.pattern_type is PatternType.MATCH:
            name = self.resource_name
            return name is None or acl.covers(acl.resource_type, name)
        return self.pattern_type in {PatternType.ANY, acl.pattern_type} and self.resource_name in {
            None,
            acl.resource_name,
        }
