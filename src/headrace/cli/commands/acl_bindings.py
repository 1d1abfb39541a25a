"""Options of `headrace acl`, and the bindings that they create or match."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, product
from typing import Any, Final

import click

from headrace.security.acls import (
    CLUSTER_NAME,
    WILDCARD,
    AclBinding,
    AclFilter,
    Operation,
    PatternType,
    Permission,
    ResourceType,
)

_CONFIGS: Final = (Operation.DESCRIBE_CONFIGS, Operation.ALTER_CONFIGS)
OPERATIONS: Final = {
    ResourceType.TOPIC: (
        *(Operation.READ, Operation.WRITE, Operation.CREATE, Operation.DELETE),
        *(Operation.ALTER, Operation.DESCRIBE, *_CONFIGS),
    ),
    ResourceType.GROUP: (Operation.READ, Operation.DESCRIBE, Operation.DELETE, *_CONFIGS),
    ResourceType.CLUSTER: (
        *(Operation.CREATE, Operation.ALTER, Operation.DESCRIBE, *_CONFIGS),
        *(Operation.CLUSTER_ACTION, Operation.IDEMPOTENT_WRITE),
    ),
    ResourceType.TRANSACTIONAL_ID: (
        *(Operation.WRITE, Operation.DESCRIBE, Operation.TWO_PHASE_COMMIT),
    ),
}
"""Operations by resource type. `ALL` is allowed for every type in addition."""
_PRODUCER: Final = {
    ResourceType.TOPIC: (
        *(Operation.WRITE, Operation.DESCRIBE, Operation.CREATE, Operation.DESCRIBE_CONFIGS),
    ),
    ResourceType.TRANSACTIONAL_ID: (Operation.WRITE, Operation.DESCRIBE),
}
_CONSUMER: Final = {
    ResourceType.TOPIC: (Operation.READ, Operation.DESCRIBE, Operation.DESCRIBE_CONFIGS),
    ResourceType.GROUP: (Operation.READ,),
}
"""The operations of --consumer, as in kafka-acls.sh, and DESCRIBE_CONFIGS: clients read a topic's serde with it."""
_WORDS: Final = {
    operation.name.replace("_", ""): operation
    for types in OPERATIONS.values()
    for operation in types
} | {"ALL": Operation.ALL}

Resource = tuple[ResourceType, str]


@dataclass(frozen=True, slots=True)
class Wanted:
    """The values of the options on the command line."""

    principals: list[tuple[str, Permission]]
    hosts: list[str]
    operations: list[Operation]
    resources: list[Resource]
    roles: list[dict[ResourceType, tuple[Operation, ...]]]
    prefixed: bool

    @property
    def pattern_type(self) -> PatternType:
        """The pattern type of the given names: literal or prefixed."""
        return PatternType.PREFIXED if self.prefixed else PatternType.LITERAL

    def bindings(self) -> list[AclBinding]:
        """Return the bindings to create.

        Raises:
            UsageError: An option is missing, or a resource does not have an operation.
        """
        if not self.principals:
            raise click.UsageError(
                "a principal is missing: give --allow-principal User:NAME or --deny-principal User:NAME"
            )
        if not self.resources:
            raise click.UsageError(
                "a resource is missing: give --topic, --group, --transactional-id or --cluster ('*' is every name)"
            )
        whats = list(self._operations())
        if not whats:
            raise click.UsageError(
                "an operation is missing: give --operation, --producer or --consumer"
            )
        bindings = [
            self._binding(what, who, host)
            for what, who, host in product(whats, self.principals, self.hosts or [WILDCARD])
        ]
        for binding in bindings:
            if problem := binding.problem():
                raise click.UsageError(problem)
        return bindings

    def _binding(
        self, what: tuple[Resource, Operation], who: tuple[str, Permission], host: str
    ) -> AclBinding:
        (kind, name), operation = what
        is_prefix = self.prefixed and kind is not ResourceType.CLUSTER
        pattern_type = PatternType.PREFIXED if is_prefix else PatternType.LITERAL
        return AclBinding(kind, name, pattern_type, who[0], host, operation, who[1])

    def _operations(self) -> Iterator[tuple[Resource, Operation]]:
        """Yield pairs of resource and operation.

        Raises:
            UsageError: An operation or a role does not apply to a resource, or a role needs another resource.
        """
        kinds = {kind for kind, _ in self.resources}
        for role in self.roles:
            for kind in set(role) - {ResourceType.TRANSACTIONAL_ID} - kinds:
                raise click.UsageError(f"--{_role_name(role)} wants {_option(kind)}")
        for kind, name in self.resources:
            of_roles = [role[kind] for role in self.roles if kind in role]
            if not of_roles and self.roles and not self.operations:
                raise click.UsageError(
                    f"{_option(kind)} {name}: an operation is missing: give --operation"
                )
            for operation in dict.fromkeys((*chain(*of_roles), *self.operations)):
                if operation not in chain(*of_roles):
                    _check_operation(operation, kind)
                yield (kind, name), operation

    def filters(self, *, matching: bool) -> list[AclFilter]:
        """Return the filters to search with; omitted options match everything.

        Args:
            matching: Whether a name finds every entry that applies to a resource of that name, prefixes and wildcards
                included. If false, a name finds the entries that were created with the same options.
        """
        any_resource: list[Resource | None] = [None]
        anybody: list[tuple[str | None, Permission]] = [(None, Permission.ANY)]
        anywhere: list[str | None] = [None]
        whats: Iterable[tuple[Resource | None, Operation]] = (
            self._operations()
            if self.roles
            else product(self.resources or any_resource, self.operations or [Operation.ANY])
        )
        literal = PatternType.MATCH if matching else PatternType.LITERAL
        found = []
        for (resource, operation), (who, permission), host in product(
            whats, self.principals or anybody, self.hosts or anywhere
        ):
            kind, name = resource or (ResourceType.ANY, None)
            pattern_type = PatternType.ANY if resource is None else literal
            if self.prefixed and kind is not ResourceType.CLUSTER:
                pattern_type = PatternType.PREFIXED
            found.append(AclFilter(kind, name, pattern_type, who, host, operation, permission))
        return found

    @property
    def is_empty(self) -> bool:
        """Whether no option was given."""
        return not (
            *self.principals,
            *self.hosts,
            *self.operations,
            *self.resources,
            *self.roles,
            *[1] * self.prefixed,
        )


def _check_operation(operation: Operation, kind: ResourceType) -> None:
    allowed = OPERATIONS[kind]
    if operation is not Operation.ALL and operation not in allowed:
        names = ", ".join(map(word, sorted(allowed)))
        raise click.UsageError(
            f"{word(operation)} does not apply to {_option(kind)}, which has {names} and All"
        )


def _option(kind: ResourceType) -> str:
    return "--" + kind.name.lower().replace("_", "-")


def _role_name(role: dict[ResourceType, tuple[Operation, ...]]) -> str:
    return "producer" if role is _PRODUCER else "consumer"


def word(operation: Operation) -> str:
    """Return Kafka's word for an operation: `DescribeConfigs`."""
    return operation.name.title().replace("_", "")


def _parse_operation(text: str) -> Operation:
    found = _WORDS.get(text.upper().replace("_", "").replace("-", ""))
    if found is None:
        names = ", ".join(word(operation) for operation in sorted(_WORDS.values()))
        raise click.UsageError(f"--operation {text!r} is not one of {names}")
    return found


_OPTIONS: Final = (
    click.option(
        "--allow-principal",
        "allowed",
        multiple=True,
        metavar="User:NAME",
        help="The principal of entries that allow; repeatable.",
    ),
    click.option(
        "--deny-principal",
        "denied",
        multiple=True,
        metavar="User:NAME",
        help="The principal of entries that deny, even if other entries allow; repeatable.",
    ),
    click.option(
        "--host",
        "hosts",
        multiple=True,
        metavar="ADDRESS",
        help="A client address.  [default: every address]",
    ),
    click.option(
        "-o",
        "--operation",
        "operations",
        multiple=True,
        metavar="WORD",
        help="An operation: Read, Write, Create, Delete, Alter, Describe, DescribeConfigs, AlterConfigs, "
        "ClusterAction, IdempotentWrite, TwoPhaseCommit or All; repeatable.",
    ),
    click.option(
        "--producer", is_flag=True, help="All operations that a producer needs, for --topic."
    ),
    click.option(
        "--consumer",
        is_flag=True,
        help="All operations that a consumer needs, for --topic and --group.",
    ),
    click.option(
        "-t",
        "--topic",
        "topics",
        multiple=True,
        metavar="NAME",
        help="A topic, or '*' for every topic.",
    ),
    click.option(
        "-g",
        "--group",
        "groups",
        multiple=True,
        metavar="NAME",
        help="A group, or '*' for every group.",
    ),
    click.option(
        "--transactional-id",
        "ids",
        multiple=True,
        metavar="NAME",
        help="A transactional id, or '*' for every one.",
    ),
    click.option("--cluster", is_flag=True, help="The cluster itself as the resource."),
    click.option("--prefixed", is_flag=True, help="The resource names are prefixes of names."),
)


def acl_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options for principals, operations, resources and addresses; the command gets `wanted`."""

    @functools.wraps(command)
    def run(
        *,
        allowed: tuple[str, ...],
        denied: tuple[str, ...],
        hosts: tuple[str, ...],
        operations: tuple[str, ...],
        topics: tuple[str, ...],
        groups: tuple[str, ...],
        ids: tuple[str, ...],
        cluster: bool,
        producer: bool,
        consumer: bool,
        prefixed: bool,
        **options: Any,
    ) -> Any:
        wanted = Wanted(
            principals=[
                *((name, Permission.ALLOW) for name in allowed),
                *((name, Permission.DENY) for name in denied),
            ],
            hosts=list(hosts),
            operations=[_parse_operation(text) for text in operations],
            resources=[
                *((ResourceType.TOPIC, name) for name in topics),
                *((ResourceType.GROUP, name) for name in groups),
                *((ResourceType.TRANSACTIONAL_ID, name) for name in ids),
                *([(ResourceType.CLUSTER, CLUSTER_NAME)] * cluster),
            ],
            roles=[_PRODUCER] * producer + [_CONSUMER] * consumer,
            prefixed=prefixed,
        )
        return command(wanted=wanted, **options)

    with_options: Callable[..., Any] = run
    for add in reversed(_OPTIONS):
        with_options = add(with_options)
    return with_options
