from __future__ import annotations

import pytest

from headrace.protocol.api_keys import ApiKey
from headrace.protocol.frame import request_class
from tools.generate_messages import main
from tools.message_emitter import condition
from tools.message_schema import FOREVER, Versions, parse_schema

# What the broker advertises or will: the classes must cover it.
NEEDED = {
    ApiKey.PRODUCE: (3, 12),
    ApiKey.FETCH: (4, 16),
    ApiKey.LIST_OFFSETS: (1, 9),
    ApiKey.METADATA: (0, 13),
    ApiKey.OFFSET_COMMIT: (2, 10),
    ApiKey.OFFSET_FETCH: (1, 10),
    ApiKey.FIND_COORDINATOR: (0, 6),
    ApiKey.JOIN_GROUP: (0, 9),
    ApiKey.HEARTBEAT: (0, 4),
    ApiKey.LEAVE_GROUP: (0, 5),
    ApiKey.SYNC_GROUP: (0, 5),
    ApiKey.DESCRIBE_GROUPS: (0, 6),
    ApiKey.LIST_GROUPS: (0, 5),
    ApiKey.API_VERSIONS: (0, 4),
    ApiKey.CREATE_TOPICS: (2, 7),
    ApiKey.DELETE_TOPICS: (1, 6),
    ApiKey.DELETE_RECORDS: (0, 2),
    ApiKey.INIT_PRODUCER_ID: (0, 5),
    ApiKey.OFFSET_FOR_LEADER_EPOCH: (2, 4),
    ApiKey.DESCRIBE_CONFIGS: (1, 4),
    ApiKey.ALTER_CONFIGS: (0, 2),
    ApiKey.CREATE_PARTITIONS: (0, 3),
    ApiKey.DELETE_GROUPS: (0, 2),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: (0, 1),
    ApiKey.OFFSET_DELETE: (0, 0),
    ApiKey.DESCRIBE_CLUSTER: (0, 2),
    ApiKey.DESCRIBE_CLIENT_QUOTAS: (0, 1),
    ApiKey.ALTER_CLIENT_QUOTAS: (0, 1),
}


def test_the_generated_modules_are_up_to_date() -> None:
    assert main(["--check"]) == 0


@pytest.mark.parametrize("key", NEEDED, ids=lambda key: key.name)
def test_requests_support_the_needed_versions(key: ApiKey) -> None:
    cls = request_class(key)
    assert cls is not None
    low, high = NEEDED[key]
    assert low >= cls.MIN_VERSION
    assert high <= cls.MAX_VERSION


def test_version_ranges_are_parsed_and_intersected() -> None:
    assert Versions.parse("3") == Versions(3, 3)
    assert Versions.parse("3+") == Versions(3, FOREVER)
    assert Versions.parse("3-7") == Versions(3, 7)
    assert not Versions.parse("none")
    assert Versions(0, 5) & Versions(3, 9) == Versions(3, 5)
    assert not Versions(0, 2) & Versions(3, 9)


def test_conditions_are_as_short_as_the_versions_allow() -> None:
    body = Versions(4, 11)
    assert condition(Versions(0, FOREVER), body) is None
    assert condition(Versions(7, FOREVER), body) == "version >= 7"
    assert condition(Versions(0, 7), body) == "version <= 7"
    assert condition(Versions(5, 7), body) == "5 <= version <= 7"
    assert condition(Versions(8, 8), body) == "version == 8"


def test_a_line_that_is_no_field_is_refused(tmp_path) -> None:
    path = tmp_path / "bad.txt"
    path.write_text("request BadRequest 0 0-1 flexible 1+\n  name string\n")
    with pytest.raises(ValueError, match="not a field: name string"):
        parse_schema(path)
