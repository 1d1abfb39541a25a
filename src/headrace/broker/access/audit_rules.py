"""The audit rules: which changes a request has made, for each API by which administrators change something.

A rule reads a request and its response, and yields the changes that were made. It yields nothing for the parts that
were refused, and nothing for a request that only validates. `headrace.broker.dispatch` wraps the rules around the
handlers once, at its import: a request of another API costs nothing more, and no handler can forget its rule.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, Protocol, TypeAlias, TypeVar

from headrace.broker.access.audit import Change, shown_settings
from headrace.config.broker import BROKER_OPTIONS
from headrace.config.group import GROUP_OPTIONS
from headrace.config.options import Option
from headrace.config.resources import ConfigResourceType
from headrace.config.topic import TOPIC_OPTIONS
from headrace.errors import ErrorCode
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.messages.alter_client_quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
)
from headrace.protocol.messages.alter_configs import (
    AlterConfigsRequest,
    AlterConfigsResource,
    AlterConfigsResponse,
)
from headrace.protocol.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)
from headrace.protocol.messages.create_acls import (
    AclCreation,
    CreateAclsRequest,
    CreateAclsResponse,
)
from headrace.protocol.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
)
from headrace.protocol.messages.create_topics import CreateTopicsRequest, CreateTopicsResponse
from headrace.protocol.messages.delete_acls import (
    DeleteAclsMatchingAcl,
    DeleteAclsRequest,
    DeleteAclsResponse,
)
from headrace.protocol.messages.delete_groups import DeleteGroupsRequest, DeleteGroupsResponse
from headrace.protocol.messages.delete_records import DeleteRecordsRequest, DeleteRecordsResponse
from headrace.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicsResponse
from headrace.protocol.messages.incremental_alter_configs import (
    AlterConfigsResource as IncrementalResource,
)
from headrace.protocol.messages.incremental_alter_configs import (
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from headrace.protocol.messages.leave_group import LeaveGroupRequest, LeaveGroupResponse
from headrace.protocol.messages.offset_commit import OffsetCommitRequest, OffsetCommitResponse
from headrace.protocol.messages.offset_delete import OffsetDeleteRequest, OffsetDeleteResponse
from headrace.protocol.messages.update_features import UpdateFeaturesRequest, UpdateFeaturesResponse
from headrace.protocol.messages.write_txn_markers import (
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from headrace.security import acls
from headrace.security.scram import ScramMechanism

Request_contra = TypeVar("Request_contra", contravariant=True)
Response_contra = TypeVar("Response_contra", contravariant=True)
Part = TypeVar("Part")
Changes: TypeAlias = Iterator[tuple[Change, dict[str, object]]]
"""The changes that a request has made: the kind of each change, and the fields of its event."""


class Rule(Protocol[Request_contra, Response_contra]):
    """An audit rule of one API."""

    def __call__(self, request: Request_contra, response: Response_contra, /) -> Changes:
        """Yield the changes that a request has made."""


class _Result(Protocol):
    """One result in a response: for a part of the request."""

    @property
    def error_code(self) -> int: ...


class _PartitionResults(Protocol):
    """A topic of a response, with one result for each partition."""

    @property
    def name(self) -> str: ...

    @property
    def partitions(self) -> Sequence[_PartitionResult]: ...


class _PartitionResult(_Result, Protocol):
    @property
    def partition_index(self) -> int: ...


_CONFIGURED: Final[Mapping[int, tuple[Change, str, Mapping[str, Option]]]] = {
    ConfigResourceType.TOPIC: ("topic_configured", "topic", TOPIC_OPTIONS),
    ConfigResourceType.BROKER: ("broker_configured", "broker", BROKER_OPTIONS),
    ConfigResourceType.GROUP: ("group_configured", "group", GROUP_OPTIONS),
}
"""The kind of the change, the field with the resource's name, and the options, by the type of the resource."""


def _done(wanted: Iterable[Part], results: Iterable[_Result]) -> Iterator[Part]:
    """Yield the parts of a request whose results are no errors."""
    for part, result in zip(wanted, results, strict=True):
        if result.error_code == ErrorCode.NONE:
            yield part


def _create_topics(request: CreateTopicsRequest, response: CreateTopicsResponse) -> Changes:
    if request.validate_only:
        return
    settings = {
        wanted.name: {config.name: config.value for config in wanted.configs}
        for wanted in request.topics
    }
    for result in _done(response.topics, response.topics):
        shown = shown_settings(settings[result.name], TOPIC_OPTIONS)
        partitions = result.num_partitions
        yield "topic_created", {"topic": result.name, "partitions": partitions, "settings": shown}


def _delete_topics(_request: DeleteTopicsRequest, response: DeleteTopicsResponse) -> Changes:
    for result in _done(response.responses, response.responses):
        yield "topic_deleted", {"topic": result.name, "topic_id": bytes(result.topic_id).hex()}


def _create_partitions(
    request: CreatePartitionsRequest, response: CreatePartitionsResponse
) -> Changes:
    if request.validate_only:
        return
    counts = {wanted.name: wanted.count for wanted in request.topics}
    for result in _done(response.results, response.results):
        yield "partitions_created", {"topic": result.name, "partitions": counts[result.name]}


def _alter_configs(
    request: AlterConfigsRequest | IncrementalAlterConfigsRequest,
    response: AlterConfigsResponse | IncrementalAlterConfigsResponse,
) -> Changes:
    if request.validate_only:
        return
    resources: Sequence[AlterConfigsResource | IncrementalResource] = request.resources
    for wanted in _done(resources, response.responses):
        given = {config.name: config.value for config in wanted.configs}
        if wanted.resource_type == ConfigResourceType.BROKER_LOGGER:
            yield "logger_configured", {"broker": wanted.resource_name, "settings": given}
            continue
        what, kind, options = _CONFIGURED[wanted.resource_type]
        yield what, {kind: wanted.resource_name, "settings": shown_settings(given, options)}


def _alter_client_quotas(
    request: AlterClientQuotasRequest, response: AlterClientQuotasResponse
) -> Changes:
    if request.validate_only:
        return
    for wanted in _done(request.entries, response.entries):
        entity = {
            part.entity_type: "<default>" if part.entity_name is None else part.entity_name
            for part in wanted.entity
        }
        quotas = {op.key: None if op.remove else op.value for op in wanted.ops}
        yield "quotas_altered", {"entity": entity, "quotas": quotas}


def _delete_groups(_request: DeleteGroupsRequest, response: DeleteGroupsResponse) -> Changes:
    for result in _done(response.results, response.results):
        yield "group_deleted", {"group": result.group_id}


def _leave_group(request: LeaveGroupRequest, response: LeaveGroupResponse) -> Changes:
    stop, stopped = request.headrace_stop, response.headrace_stop
    if stop is None or stop.again or stopped is None or stopped.error_code:
        return  # members leave or are removed, or the client asks how far a stop has come
    yield "member_stopped", {"group": request.group_id, "member": stopped.member_id}


def _offset_commit(request: OffsetCommitRequest, response: OffsetCommitResponse) -> Changes:
    if request.member_id or request.generation_id_or_member_epoch >= 0:
        return  # a member of the group commits its own offsets
    offsets = {
        f"{topic.name}-{partition.partition_index}": partition.committed_offset
        for topic in request.topics
        for partition in topic.partitions
    }
    done = {name: offsets[name] for name in _partitions(response.topics)}
    if done:
        yield "offsets_set", {"group": request.group_id, "offsets": done}


def _offset_delete(request: OffsetDeleteRequest, response: OffsetDeleteResponse) -> Changes:
    deleted = _partitions(response.topics)
    if deleted:
        yield "offsets_deleted", {"group": request.group_id, "partitions": deleted}


def _delete_records(request: DeleteRecordsRequest, response: DeleteRecordsResponse) -> Changes:
    offsets = {
        (topic.name, partition.partition_index): partition.offset
        for topic in request.topics
        for partition in topic.partitions
    }
    for topic in response.topics:
        before = {
            str(partition.partition_index): offsets[topic.name, partition.partition_index]
            for partition in _done(topic.partitions, topic.partitions)
        }
        if before:
            yield "records_deleted", {"topic": topic.name, "before_offset": before}


def _write_txn_markers(
    request: WriteTxnMarkersRequest, response: WriteTxnMarkersResponse
) -> Changes:
    for wanted, result in zip(request.markers, response.markers, strict=True):
        partitions = _partitions(result.topics)
        if partitions:
            yield (
                "transaction_ended",
                {
                    "producer_id": wanted.producer_id,
                    "committed": wanted.transaction_result,
                    "partitions": partitions,
                },
            )


def _create_acls(request: CreateAclsRequest, response: CreateAclsResponse) -> Changes:
    for creation in _done(request.creations, response.results):
        yield "acl_created", _acl(creation, creation.resource_pattern_type)


def _delete_acls(_request: DeleteAclsRequest, response: DeleteAclsResponse) -> Changes:
    for result in response.filter_results:
        for acl in _done(result.matching_acls, result.matching_acls):
            yield "acl_deleted", _acl(acl, acl.pattern_type)


def _acl(entry: AclCreation | DeleteAclsMatchingAcl, pattern_type: int) -> dict[str, object]:
    return {
        "permission": acls.Permission(entry.permission_type).name,
        "acl_principal": entry.principal,
        "acl_host": entry.host,
        "operation": acls.Operation(entry.operation).name,
        "resource": acls.ResourceType(entry.resource_type).name,
        "pattern": acls.PatternType(pattern_type).name,
        "name": entry.resource_name,
    }


def _alter_scram_credentials(
    request: AlterUserScramCredentialsRequest, response: AlterUserScramCredentialsResponse
) -> Changes:
    changed = {result.user for result in _done(response.results, response.results)}
    parts: list[tuple[Change, ScramCredentialDeletion | ScramCredentialUpsertion]] = [
        ("credential_deleted", part) for part in request.deletions
    ]
    parts += [("credential_set", part) for part in request.upsertions]
    for what, part in parts:
        if part.name in changed:
            mechanism = ScramMechanism(part.mechanism).sasl_name
            yield what, {"user": part.name, "mechanism": mechanism}


def _update_features(request: UpdateFeaturesRequest, response: UpdateFeaturesResponse) -> Changes:
    if response.error_code == ErrorCode.NONE and not request.validate_only:
        levels = {update.feature: update.max_version_level for update in request.feature_updates}
        yield "features_updated", {"features": levels}


def _partitions(topics: Iterable[_PartitionResults]) -> list[str]:
    return [
        f"{topic.name}-{partition.partition_index}"
        for topic in topics
        for partition in _done(topic.partitions, topic.partitions)
    ]


RULES: Final[Mapping[int, Rule[Any, Any]]] = {
    ApiKey.CREATE_TOPICS: _create_topics,
    ApiKey.DELETE_TOPICS: _delete_topics,
    ApiKey.CREATE_PARTITIONS: _create_partitions,
    ApiKey.ALTER_CONFIGS: _alter_configs,
    ApiKey.INCREMENTAL_ALTER_CONFIGS: _alter_configs,
    ApiKey.ALTER_CLIENT_QUOTAS: _alter_client_quotas,
    ApiKey.DELETE_GROUPS: _delete_groups,
    ApiKey.LEAVE_GROUP: _leave_group,
    ApiKey.OFFSET_COMMIT: _offset_commit,
    ApiKey.OFFSET_DELETE: _offset_delete,
    ApiKey.DELETE_RECORDS: _delete_records,
    ApiKey.WRITE_TXN_MARKERS: _write_txn_markers,
    ApiKey.CREATE_ACLS: _create_acls,
    ApiKey.DELETE_ACLS: _delete_acls,
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: _alter_scram_credentials,
    ApiKey.UPDATE_FEATURES: _update_features,
}
"""The rules by API key. The requests of an API have one class, so that a rule gets what its signature says."""
