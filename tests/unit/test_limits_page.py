"""Check that docs/reference/limits.md has every limit of the code with its value, and names tests that exist.

Limits are the fields of `ServerLimits`, and the constants of the broker's packages with MAX, MOST, LIMIT, LONGEST or
ELEMENTS in their names. A new constant needs an entry here: the row of the page that has it, or the reason why users
need not know it.
"""

from __future__ import annotations

import ast
import dataclasses
import re
from functools import cache
from pathlib import Path
from typing import Any, Final

import pytest

from headrace.server.limits import ServerLimits

ROOT: Final = Path(__file__).resolve().parents[2]
SOURCE: Final = ROOT / "src" / "headrace"
PAGE: Final = (ROOT / "docs" / "reference" / "limits.md").read_text()
PACKAGES: Final = ("broker", "server", "core", "records", "protocol", "security")
NAMED_AS_BOUND: Final = re.compile(r"(^|_)(MAX|MOST|LIMIT|LONGEST|ELEMENTS)(_|$)")

SERVER_LIMITS: Final = {
    "max_request_bytes": "size of a Produce request",
    "max_other_request_bytes": "size of any other request",
    "max_unauthenticated_bytes": "size of a request before authentication",
    "authentication_timeout_ms": "time to authenticate",
    "max_requests_in_flight": "requests in flight of a connection",
    "max_queued_bytes": "responses that a connection has not taken",
    "memory_budget_bytes": "receive buffers of all connections",
    "initial_buffer_bytes": "receive buffers of all connections",
    "busy_buffer_bytes": "receive buffer of a busy connection",
    "idle_timeout_ms": "time without a request",
    "handshake_timeout_ms": "time of a TLS handshake",
    "frame_timeout_ms": "time for the rest of a request",
    "min_bytes_per_second": "time for the rest of a request",
    "write_timeout_ms": "time in which a client takes no byte",
    "max_connections": "connections",
    "max_connections_per_address": "connections from one address",
    "max_connection_rate_per_address": "new connections per second from one address",
    "max_topics_per_request": "topics (or groups, resources, ...) that a request names",
    "keepalive_idle_s": "time without any byte",
    "keepalive_interval_s": "time without any byte",
    "keepalive_probes": "time without any byte",
}
"""The beginning of the page's row for each field of `ServerLimits`."""

CONSTANTS: Final = {
    "broker/access/authorizer.py:ACLS_LIMIT": "ACLs |",
    "broker/access/authorizer.py:ACL_BYTES_LIMIT": "size of a stored ACL",
    "broker/access/authorizer.py:DECISIONS_LIMIT": "results of the authorizer",
    "broker/access/authorizer.py:_REMEMBERED_NAME_LIMIT": "length of a name in such a result",
    "broker/access/credentials.py:CREDENTIALS_LIMIT": "SCRAM users",
    "broker/access/credentials.py:USER_CHARACTERS_LIMIT": "length of the name of a SCRAM user",
    "broker/metadata/commit_lane.py:WAITING_LIMIT": "changes of the metadata that wait",
    "broker/coordinators/group_settings.py:GROUPS_LIMIT": "groups with a configuration",
    "broker/coordinators/group_settings.py:NAME_CHARACTERS_LIMIT": "length of the name of such a group",
    "broker/bounds/expressions.py:PATTERN_CHARACTERS_LIMIT": "size of a regular expression",
    "broker/coordinators/group_topics.py:_EVALUATED_LIMIT": "regular expressions that are evaluated",
    "broker/coordinators/group_topics.py:_REMEMBERED_NAMES_LIMIT": "names that are remembered as matches",
    "broker/bounds/expressions.py:_STEPS_LIMIT": "instructions of a regular expression",
    "broker/topic_names.py:DELETED_NAMES_LIMIT": "names of deleted topics",
    "broker/bounds/expressions.py:_TEXT_STEPS_LIMIT": "instructions of such a pattern",
    "broker/bounds/expressions.py:_PROGRAM_LIMIT": "size of a regular expression",
    "broker/coordinators/remote.py:BEGUN_LIMIT": "transactions with a coordinator on another broker",
    "broker/coordinators/transactional_batches.py:WAITING_BYTES_MAX": "",
    "broker/waiting/delayed_fetch.py:WAITING_BYTES_MAX": "delayed fetches of all connections",
    "broker/waiting/delayed_fetch.py:CONNECTION_BYTES_MAX": "delayed fetches of one connection",
    "broker/waiting/fetch_sessions.py:PARTITIONS_LIMIT": "partitions in all fetch sessions",
    "broker/handlers/alter_user_scram_credentials.py:_SALT_BYTES_LIMIT": "salt of a stored password",
    "broker/partitions/record_deletion.py:LONGEST_WAIT_MS": "time for which a DeleteRecords request waits",
    "broker/handlers/describe_producers.py:_MOST": "producers in one response",
    "broker/handlers/describe_topic_partitions.py:PARTITIONS_LIMIT": "partitions in one response of Desc",
    "broker/handlers/fetch.py:LONGEST_WAIT_MS": "time that a Fetch waits",
    "broker/quotas/client_quotas.py:ENTITIES_LIMIT": "users and client ids with quotas",
    "broker/quotas/client_quotas.py:_NAME_CHARACTERS_LIMIT": "length of such a name",
    "broker/quotas/throttling.py:TRACKED_LIMIT": "rates of users and client ids",
    "broker/quotas/throttling.py:_NAME_LIMIT": "length of a name in such a rate",
    "broker/recompression.py:BATCHES_MOST": "batches that the broker compresses again at a time",
    "broker/topic_names.py:NAME_LIMIT": "length of a topic name",
    "core/coordinator/state/memory.py:GROUP_LIMIT": "memory of the members of one group",
    "core/coordinator/state/memory.py:GROUPS_LIMIT": "memory of the members of all groups",
    "core/coordinator/state/memory.py:OFFSETS_LIMIT": "committed offsets of all groups",
    "core/coordinator/state/memory.py:PENDING_LIMIT": "offsets that one transaction commits",
    "core/coordinator/state/stops.py:ENDS_LIMIT": "stopped members whose result",
    "core/coordinator/consumer/requests.py:REGEXES_LIMIT": "regular expressions of a group's",
    "core/coordinator/consumer/requests.py:_MAX_STORED_BYTES": "length of a group name",
    "core/coordinator/partitioning.py:MAX_STORED_BYTES": "length of a group name",
    "core/scheduled/due_queue.py:LIMIT": "scheduled records of a partition whose times are in memory",
    "core/scheduled/division.py:MAX_SCHEDULED_BYTES": "records with times to live",
    "core/log/reading/selective_read.py:MOST_RECORDS": "records of a batch that a Fetch decodes",
    "records/recompression.py:RECOMPRESSED_MAX": "size of a batch that the broker compresses again (",
    "records/refusal.py:MAX_DIRECTED": "records with times to live",
    "records/refusal.py:MAX_HEADERS": "headers of a record with a time",
    "records/refusal.py:MAX_KEYED": "records of a batch for a compacted topic",
    "records/tags.py:MAX_FOUND": "records of a batch that a Fetch decodes",
    "server/tls/revocation.py:FILE_BYTES_LIMIT": "size of a file of certificate",
    "core/coordinator/transaction/usage.py:MAX_BYTES": "memory of all transactional ids",
    "core/log/producers/aborted_history.py:MAX_CACHED": "aborted transactions of sealed segments",
    "core/log/producers/aborted_history.py:MAX_IN_MEMORY": "aborted transactions of active segments",
    "core/log/producers/aborted_history.py:MAX_IN_SEGMENT": "aborted transactions of a segment",
    "core/log/producers/aborted_history.py:_MAX_CARRIED": "aborted transactions of sealed segments",
    "core/log/reading/aborted_lookup.py:MAX_LISTED": "aborted transactions in one Fetch",
    "core/log/cleaning/cleaner.py:MAX_KEYS": "keys in one round of compaction",
    "core/log/segments/open_segments.py:MAX_OPEN_SEGMENTS": "open segments of all logs |",
    "core/log/producers/producer_bound.py:MAX_PRODUCERS": "idempotent producers remembered in all",
    "core/log/reading/time_lookup.py:MOST_BATCHES": "batches that a lookup by time",
    "protocol/codec.py:REQUEST_ELEMENTS": "elements of all lists of a request",
    "protocol/codec.py:SETTINGS_ELEMENTS": "elements of a request that changes configs",
    "protocol/codec.py:STRING_LIMIT": "length of a string",
    "protocol/pieces.py:PIECE_ELEMENTS": "elements of a response that are encoded",
    "records/batch.py:MAX_RECORDS": "records that a batch claims",
    "records/compression.py:MAX_DECOMPRESSED_SIZE": "size after decompression",
    "records/compression.py:MAX_GZIP_MEMBERS": "members of a gzip stream",
    "records/compression.py:MAX_RATIO": "size after decompression",
    "records/compression.py:MAX_SNAPPY_BLOCKS": "blocks of a snappy frame",
    "records/decoding.py:MAX_HEADERS": "headers of a record",
    "records/directives.py:MAX_TAG_BYTES": "tags in the filter",
    "records/tags.py:MAX_TAGS": "tags in the filter",
    "records/varint.py:MAX_VARINT_SIZE": "length of a variable-length",
    "records/varint.py:MAX_VARLONG_SIZE": "length of a variable-length",
    "security/oauthbearer.py:_MESSAGE_BYTES_LIMIT": "length of a token",
    "security/plain.py:_MESSAGE_BYTES_LIMIT": "length of a SCRAM or PLAIN",
    "security/principal_mapping.py:SUBJECT_LIMIT": "length of the subject",
    "security/scram.py:_MESSAGE_BYTES_LIMIT": "length of a SCRAM or PLAIN",
    "security/scram.py:MAX_ITERATIONS": "iterations of a stored password",
    "security/scram.py:_SALT_BYTES_LIMIT": "salt of a stored password",
    "security/tokens.py:_KEYS_LIMIT": "keys of a token's issuer",
    "security/tokens.py:_USER_CHARACTERS_LIMIT": "length of the user name in a token",
    "server/descriptors.py:_MOST_SEGMENTS": "open segments of all logs that wait",
    "server/peers.py:WAITING_LIMIT": "requests to another broker",
    "server/jwks.py:_BYTES_LIMIT": "document with the keys",
    "server/log.py:VALUE_LIMIT": "length of a value in a log line",
    "server/log.py:ITEMS_LIMIT": "length of a value in a log line",
    "server/log.py:TRACEBACK_LIMIT": "length of a traceback in the log",
}
"""The beginning of the page's row for each constant; "" for a sentence between the tables."""

NO_BOUNDS_FOR_USERS: Final = {
    "broker/replication/follower_fetches.py:LONGEST_WAIT_MS": "followers ask for less",
    "broker/coordinators/group_topics.py:_REMEMBERED_LIMIT": "a cache of compiled expressions",
    "broker/handlers/list_offsets.py:MAX_TIMESTAMP": "a number of the protocol",
    "broker/handlers/list_offsets.py:MAX_TIMESTAMP_VERSION": "a number of the protocol",
    "broker/metadata/migration.py:BYTES_LIMIT": "size of one commit of a migration",
    "broker/metadata/migration.py:ITEMS_LIMIT": "size of one commit of a migration",
    "broker/partitions/topic_store.py:OPERATIONS_LIMIT": "size of one commit",
    "core/coordinator/classic/join.py:GROUP_NAME_MAX": "how much is logged",
    "core/coordinator/classic/join.py:MEMBER_ID_PREFIX_MAX": "how a member id is made",
    "core/coordinator/classic/join.py:REASON_MAX": "how much is logged",
    "core/coordinator/classic/rebalance.py:MAX_GENERATION": "a number of the protocol",
    "core/scheduled/schedule.py:_MOST": "a number of the format",
    "core/lease/names.py:_AT_MOST": "no number",
    "core/log/append/keys.py:_MOST_REPORTED": "size of a log line",
    "core/log/offsets.py:MAX_OFFSET_SPAN": "a number of the format",
    "core/log/append/log_files.py:_MAX_UNSYNCED_FILES": "files that a log leaves open at most",
    "core/log/reading/selective_read.py:_MOST_COMPRESSED": "whether an answer is compressed again",
    "core/log/offsets.py:MAX_OFFSET": "a number of the format",
    "core/log/segments/segment.py:_MAX_HINTS": "a cache",
    "core/scheduled/division.py:_MOST_REPORTED": "size of a log line",
    "core/quota.py:LONGEST_PAUSE_MS": "a number of the protocol",
    "protocol/codec.py:MESSAGE_ELEMENTS": "a bound of responses and of stored messages, not of requests",
    "protocol/codec.py:_MAX_VARINT_BYTES": "see records/varint.py",
    "records/batch.py:MAX_TIMESTAMP": "a number of the format",
    "records/batch.py:MAX_TIMESTAMP_POSITION": "a number of the format",
    "records/compression.py:_SNAPPY_MAX_RATIO": "a number of the format",
    "records/directives.py:MAX_TIME_MS": "the last time that there is",
    "records/directives.py:_MAX_DIGITS": "the last time that there is",
    "records/expiry.py:_MOST_REPORTED": "size of a log line",
    "records/rewriting.py:_MAX_DELTA": "a number of the format",
    "records/tags.py:_MOST_BYTES": "follows from the tags",
    "security/scram.py:CLIENT_ITERATIONS_LIMIT": "of clients",
    "security/unknown_users.py:FORMS_LIMIT": "how made-up users are drawn",
    "server/descriptors.py:_MOST_RESERVED": "its sentence is below the table",
    "server/log.py:_WINDOWS_LIMIT": "how lines are counted",
    "server/connections/outgoing.py:READ_MAX_BYTES": "how files are sent",
    "server/connections/outgoing.py:_JOIN_MAX_BYTES": "how files are sent",
    "server/supervisor/broker_process.py:_MAX_BACKOFF_S": "how broker processes are started again",
    "server/supervisor/settings.py:_PORT_LIMIT": "the range of ports",
    "server/peers.py:MAX_BACKOFF_MS": "how connections between brokers are made",
    "server/peers.py:_LONGEST_SLEEP_MS": "how the timer is set",
    "server/timers.py:_MAX_DELAY_MS": "how the timer is set",
}
"""The reason why a constant with such a name is not on the page."""


@cache
def constants() -> dict[str, Any]:
    """Return the constants that are named as limits; the value is `None` if it is not a number."""
    found: dict[str, Any] = {}
    for package in PACKAGES:
        for path in sorted((SOURCE / package).rglob("*.py")):
            if "messages" in path.parts:
                continue
            place = path.relative_to(SOURCE).as_posix()
            values: dict[str, Any] = {}
            for node in ast.parse(path.read_text()).body:
                if isinstance(node, ast.AnnAssign | ast.Assign):
                    target = node.target if isinstance(node, ast.AnnAssign) else node.targets[0]
                    if (
                        isinstance(target, ast.Name)
                        and target.id.isupper()
                        and node.value is not None
                    ):
                        values[target.id] = _value(node.value, values)
                        if NAMED_AS_BOUND.search(target.id):
                            found[f"{place}:{target.id}"] = values[target.id]
    return found


def _value(node: ast.expr, known: dict[str, Any]) -> Any:
    """Return the value of an expression of numbers and known constants, or `None`."""
    try:
        return eval(compile(ast.Expression(node), "", "eval"), {"__builtins__": {}}, dict(known))
    except (NameError, TypeError, AttributeError):
        return None


def spellings(value: int) -> set[str]:
    """Return the forms in which the page may write a number: plain, as bytes, or as a time in milliseconds."""
    found = {f"{value:,}"}
    for unit, size in (("KiB", 1 << 10), ("MiB", 1 << 20), ("GiB", 1 << 30)):
        if value >= size and value % size == 0:
            found.add(f"{value // size:,} {unit}")
    for unit, size in (("s", 1000), ("min", 60_000), ("h", 3_600_000)):
        if value >= size and value % size == 0:
            found.add(f"{value // size:,} {unit}")
    words = {6: "six", 16: "sixteen"}
    return found | ({words[value]} if value in words else set())


def rows(begin: str) -> list[str]:
    found = [line for line in PAGE.splitlines() if line.startswith(f"| {begin}")]
    return found if begin else [line for line in PAGE.splitlines() if not line.startswith("|")]


def is_written(value: int, lines: list[str]) -> bool:
    return any(
        re.search(rf"(?<![\d,]){re.escape(spelling)}(?![\d,]*\d)", line)
        for line in lines
        for spelling in spellings(value)
    )


def test_every_field_of_the_server_limits_is_on_the_page():
    limits = ServerLimits()
    fields = {each.name: getattr(limits, each.name) for each in dataclasses.fields(ServerLimits)}
    assert set(SERVER_LIMITS) == set(fields), "say in which row of docs/reference/limits.md it is"
    for name, begin in SERVER_LIMITS.items():
        assert rows(begin), f"no row begins with {begin!r}"
        assert is_written(fields[name], rows(begin)), (
            f"{name} = {fields[name]}: not in {rows(begin)}"
        )


def test_every_constant_that_is_a_bound_is_on_the_page():
    known = set(CONSTANTS) | set(NO_BOUNDS_FOR_USERS)
    found = constants()
    assert set(found) - known == set(), (
        "say in which row of docs/reference/limits.md it is, or why in none"
    )
    assert known - set(found) == set(), "these are gone"


@pytest.mark.parametrize("constant", sorted(CONSTANTS))
def test_a_bound_has_its_value_in_its_row(constant):
    value, begin = constants()[constant], CONSTANTS[constant]
    assert value is not None, "write the bound as a number"
    assert rows(begin), f"no row of docs/reference/limits.md begins with {begin!r}"
    assert is_written(value, rows(begin)), (
        f"{value:,} is not in {rows(begin) if begin else 'the text'}"
    )


def test_every_test_that_the_page_names_exists():
    named = re.findall(r"`((?:unit|property|conformance|cost|fuzz|crash)/[\w/.]*)`", PAGE)
    assert len(named) > 50
    missing = {name for name in named if not (ROOT / "tests" / name).exists()}
    assert not missing
