"""The audit log of administrative requests: one rule for each API that changes something.

A rule reads a request and its response, and yields the changes that were made: not the refused parts, and not the
requests that only validate. `audited` wraps the rules around the handlers once. Other requests pay nothing for it, and
no handler can forget it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import GeneratorType
from typing import Any, Final

from headrace.broker.access.audit import Change, shown_settings
from headrace.broker.context import RequestContext
from headrace.broker.handler import Handler
from headrace.broker.services import Services
from headrace.broker.waiting.steps import ENTRY_COST, Work
from headrace.config.broker import BROKER_OPTIONS
from headrace.config.group import GROUP_OPTIONS
from headrace.config.options import Option
from headrace.config.resources import ConfigResourceType
from headrace.config.topic import TOPIC_OPTIONS
from headrace.core.deferred import Deferred
from headrace.errors import ErrorCode
from headrace.protocol.api_keys import ApiKey
from headrace.security import acls
from headrace.security.scram import ScramMechanism

Done = Iterator[tuple[Change, dict[str, object]]]
Rule = Callable[[Any, Any], Done]

_ENTRY_COST: Final = 8 * ENTRY_COST
"""The cost of an entry of the audit log."""
_CONFIGURED: Final[Mapping[int, tuple[Change, str, Mapping[str, Option]]]] = {
    ConfigResourceType.TOPIC: ("topic_configured", "topic", TOPIC_OPTIONS),
    ConfigResourceType.BROKER: ("broker_configured", "broker", BROKER_OPTIONS),
    ConfigResourceType.GROUP: ("group_configured", "group", GROUP_OPTIONS),
}


def audited(api_key: int, handle: Handler[Any, Any]) -> Handler[Any, Any]:
    """Return a handler that also writes its changes to the audit log, if there is a rule for its API."""
    rule = RULES.get(api_key)
    if rule is None:
        return handle

    def handle_audited(services: Services, context: RequestContext, request: Any) -> Any:
        def note(response: Any) -> Any:
            for what, fields in rule(request, response):
                services.audit.changed(context, what, **fields)
            return response

        def noted(reply: Any) -> Any:
            if not isinstance(reply, Deferred):
                return note(reply)
            audited_reply: Deferred[Any] = Deferred()
            # Not by `map`: the change is logged also if the connection of the client is closed before the response.
            reply.on_done(lambda response: audited_reply.resolve(note(response)))
            return audited_reply

        def in_steps(steps: Work[Any]) -> Work[Any]:
            reply = yield from steps
            if isinstance(reply, Deferred):
                return noted(reply)
            for what, fields in rule(request, reply):
                services.audit.changed(context, what, **fields)
                yield _ENTRY_COST
            return reply

        reply = handle(services, context, request)
        return in_steps(reply) if isinstance(reply, GeneratorType) else noted(reply)

    return handle_audited


def _done(wanted: Iterable[Any], results: Iterable[Any]) -> Iterator[Any]:
    """Yield the parts of a request that succeeded, of a request that is answered part by part."""
    for part, result in zip(wanted, results, strict=True):
        if result.error_code == ErrorCode.NONE:
            yield part


def _create_topics(request: Any, response: Any) -> Done:
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


def _delete_topics(_request: Any, response: Any) -> Done:
    for result in _done(response.responses, response.responses):
        yield "topic_deleted", {"topic": result.name, "topic_id": bytes(result.topic_id).hex()}


def _create_partitions(request: Any, response: Any) -> Done:
    if request.validate_only:
        return
    counts = {wanted.name: wanted.count for wanted in request.topics}
    for result in _done(response.results, response.results):
        yield "partitions_created", {"topic": result.name, "partitions": counts[result.name]}


def _alter_configs(request: Any, response: Any) -> Done:
    if request.validate_only:
        return
    for wanted in _done(request.resources, response.responses):
        given = {config.name: config.value for config in wanted.configs}
        if wanted.resource_type == ConfigResourceType.BROKER_LOGGER:
            yield "logger_configured", {"broker": wanted.resource_name, "settings": given}
            continue
        what, kind, options = _CONFIGURED[wanted.resource_type]
        yield what, {kind: wanted.resource_name, "settings": shown_settings(given, options)}


def _alter_client_quotas(request: Any, response: Any) -> Done:
    if request.validate_only:
        return
    for wanted in _done(request.entries, response.entries):
        entity = {
            part.entity_type: "<default>" if part.entity_name is None else part.entity_name
            for part in wanted.entity
        }
        quotas = {op.key: None if op.remove else op.value for op in wanted.ops}
        yield "quotas_altered", {"entity": entity, "quotas": quotas}


def _delete_groups(_request: Any, response: Any) -> Done:
    for result in _done(response.results, response.results):
        yield "group_deleted", {"group": result.group_id}


def _leave_group(request: Any, response: Any) -> Done:
    stop, stopped = request.headrace_stop, response.headrace_stop
    if stop is None or stop.again or stopped is None or stopped.error_code:
        return  # members that leave or are removed, and questions how far a stop is
    yield "member_stopped", {"group": request.group_id, "member": stopped.member_id}


def _offset_commit(request: Any, response: Any) -> Done:
    if request.member_id or request.generation_id_or_member_epoch >= 0:
        return  # a member's own
    offsets = {
        f"{topic.name}-{partition.partition_index}": partition.committed_offset
        for topic in request.topics
        for partition in topic.partitions
    }
    done = {name: offsets[name] for name in _partitions(response.topics)}
    if done:
        yield "offsets_set", {"group": request.group_id, "offsets": done}


def _offset_delete(request: Any, response: Any) -> Done:
    deleted = _partitions(response.topics)
    if deleted:
        yield "offsets_deleted", {"group": request.group_id, "partitions": deleted}


def _delete_records(request: Any, response: Any) -> Done:
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


def _write_txn_markers(request: Any, response: Any) -> Done:
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


def _create_acls(request: Any, response: Any) -> Done:
    for creation in _done(request.creations, response.results):
        yield "acl_created", _acl(creation, creation.resource_pattern_type)


def _delete_acls(_request: Any, response: Any) -> Done:
    for result in response.filter_results:
        for acl in _done(result.matching_acls, result.matching_acls):
            yield "acl_deleted", _acl(acl, acl.pattern_type)


def _acl(entry: Any, pattern_type: int) -> dict[str, object]:
    return {
        "permission": acls.Permission(entry.permission_type).name,
        "acl_principal": entry.principal,
        "acl_host": entry.host,
        "operation": acls.Operation(entry.operation).name,
        "resource": acls.ResourceType(entry.resource_type).name,
        "pattern": acls.PatternType(pattern_type).name,
        "name": entry.resource_name,
    }


def _alter_scram_credentials(request: Any, response: Any) -> Done:
    changed = {result.user for result in _done(response.results, response.results)}
    parts: list[tuple[Change, Any]] = [("credential_deleted", part) for part in request.deletions]
    parts += [("credential_set", part) for part in request.upsertions]
    for what, part in parts:
        if part.name in changed:
            mechanism = ScramMechanism(part.mechanism).sasl_name
            yield what, {"user": part.name, "mechanism": mechanism}


def _update_features(request: Any, response: Any) -> Done:
    if response.error_code == ErrorCode.NONE and not request.validate_only:
        levels = {update.feature: update.max_version_level for update in request.feature_updates}
        yield "features_updated", {"features": levels}


def _partitions(topics: Sequence[Any]) -> list[str]:
    return [
        f"{topic.name}-{partition.partition_index}"
        for topic in topics
        for partition in _done(topic.partitions, topic.partitions)
    ]


RULES: Final[Mapping[int, Rule]] = {
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
"""The APIs by which administrators change something."""
CHANGING: Final = frozenset(RULES) | {
    ApiKey.PRODUCE,
    ApiKey.ADD_PARTITIONS_TO_TXN,
    ApiKey.TXN_OFFSET_COMMIT,
}
"""The APIs that change stored state. Their requests are completed also if the connection of the client is closed."""
