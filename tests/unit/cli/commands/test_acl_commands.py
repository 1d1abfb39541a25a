"""`headrace acl` on a data directory: what its options create, find and delete."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from headrace.cli import main
from headrace.cli.commands.acl_bindings import OPERATIONS, word
from headrace.security.acls import Operation
from headrace.server.stores import open_stores

ALICE = ("--allow-principal", "User:alice")


class Data:
    """A data directory and the commands that work on it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def run(self, *arguments: str, code: int = 0):
        result = CliRunner().invoke(main, ("acl", *arguments, "--data", str(self.path)))
        assert result.exit_code == code, result.output
        return result

    def entries(self, *arguments: str) -> set[str]:
        """`Topic orders Read`, or with what is unusual about it."""
        found = json.loads(self.run(*(arguments or ("list",)), "--format", "json").stdout)
        return {
            " ".join(
                filter(
                    None,
                    (
                        each["resource"].lower(),
                        each["name"] + "*" * (each["pattern"] == "PREFIXED"),
                        each["operation"],
                        each["principal"].removeprefix("User:"),
                        each["host"].replace("*", ""),
                        each["permission"].replace("ALLOW", "").lower(),
                    ),
                )
            )
            for each in found
        }


@pytest.fixture
def data(tmp_path: Path) -> Data:
    return Data(tmp_path / "data")


def test_create_adds_an_acl_for_each_principal_operation_and_resource(data: Data) -> None:
    data.run(
        *("create", *ALICE, "--deny-principal", "User:bob", "-o", "read", "-o", "DESCRIBE"),
        *("--topic", "t", "--group", "g", "--host", "10.0.0.1"),
    )
    assert data.entries() == {
        f"{resource} {operation} {who}"
        for resource in ("topic t", "group g")
        for operation in ("Read", "Describe")
        for who in ("alice 10.0.0.1", "bob 10.0.0.1 deny")
    }


def test_a_producer_gets_all_permissions_that_producing_needs(data: Data) -> None:
    data.run(
        "create", *ALICE, "--producer", "--topic", "t", "--transactional-id", "x", "--prefixed"
    )
    assert data.entries() == {
        "topic t* Write alice",
        "topic t* Describe alice",
        "topic t* Create alice",
        "topic t* DescribeConfigs alice",
        "transactional_id x* Write alice",
        "transactional_id x* Describe alice",
    }


def test_a_consumer_gets_all_permissions_that_consuming_needs(data: Data) -> None:
    data.run("create", *ALICE, "--consumer", "--topic", "t", "--group", "g")
    assert data.entries() == {
        "topic t Read alice",
        "topic t Describe alice",
        "topic t DescribeConfigs alice",
        "group g Read alice",
    }


def test_producer_and_consumer_options_can_be_combined(data: Data) -> None:
    data.run(
        *("create", *ALICE, "--producer", "--consumer", "--topic", "t", "--group", "g"),
        *("-o", "describe"),
    )
    assert data.entries() == {
        *(f"topic t {operation} alice" for operation in ("Write", "Describe", "Create", "Read")),
        "topic t DescribeConfigs alice",
        "group g Read alice",
        "group g Describe alice",
    }


def test_a_prefix_is_none_of_the_cluster(data: Data) -> None:
    data.run("create", *ALICE, "-o", "create", "--cluster", "--topic", "t", "--prefixed")
    assert data.entries() == {"cluster kafka-cluster Create alice", "topic t* Create alice"}


def test_each_row_has_an_outcome_and_a_repetition_is_no_error(data: Data) -> None:
    for _ in range(2):
        table = data.run("create", *ALICE, "-o", "all", "--topic", "*").stdout.splitlines()
        assert [line.split() for line in table] == [
            [
                "RESOURCE",
                "NAME",
                "PATTERN",
                "PRINCIPAL",
                "HOST",
                "OPERATION",
                "PERMISSION",
                "STATUS",
            ],
            ["TOPIC", "*", "LITERAL", "User:alice", "*", "All", "ALLOW", "created"],
        ]
    assert data.entries() == {"topic * All alice"}


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("-o", "read", "--topic", "t"), "a principal is missing"),
        ((*ALICE, "-o", "read"), "a resource is missing"),
        ((*ALICE, "--topic", "t"), "an operation is missing"),
        (("--allow-principal", "alice", "-o", "read", "--topic", "t"), "write User:name"),
        ((*ALICE, "-o", "reed", "--topic", "t"), "is not one of All, Read, Write"),
        ((*ALICE, "-o", "read", "--cluster"), "which has Create, Alter, Describe"),
        ((*ALICE, "-o", "write", "--group", "g"), "Write does not apply to --group"),
        ((*ALICE, "--consumer", "--topic", "t"), "--consumer wants --group"),
        ((*ALICE, "--producer", "--group", "g"), "--producer wants --topic"),
        (
            (*ALICE, "--producer", "--topic", "t", "--group", "g"),
            "--group g: an operation is missing",
        ),
        ((*ALICE, "-o", "read", "--topic", ""), "the resource name is empty"),
    ],
)
def test_a_missing_argument_is_reported(data: Data, arguments: tuple[str, ...], text: str) -> None:
    assert text in data.run("create", *arguments, code=2).stderr
    assert not data.path.exists()


def test_every_operation_can_be_named(data: Data) -> None:
    for operations in OPERATIONS.values():
        for operation in operations:
            for text in (word(operation), operation.name, operation.name.lower().replace("_", "-")):
                found = data.run("create", *ALICE, "-o", text, code=2).stderr
                assert "a resource is missing" in found
    assert word(Operation.DESCRIBE_CONFIGS) == "DescribeConfigs"


@pytest.fixture
def several(data: Data) -> Data:
    data.run("create", *ALICE, "-o", "read", "-o", "write", "--topic", "orders")
    data.run("create", *ALICE, "-o", "read", "--topic", "ord", "--prefixed")
    data.run("create", "--deny-principal", "User:*", "-o", "delete", "--topic", "*")
    data.run(
        "create", "--allow-principal", "User:bob", "-o", "read", "--group", "g", "--host", "::1"
    )
    return data


@pytest.mark.parametrize(
    ("arguments", "entries"),
    [
        (("--topic", "orders"), {"R", "W", "P", "D"}),
        (("--topic", "ordinary"), {"P", "D"}),
        (("--topic", "ord", "--prefixed"), {"P"}),
        (("--topic", "orders", "--group", "g", "-o", "read"), {"R", "P", "G"}),
        (("--deny-principal", "User:*"), {"D"}),
        (("--deny-principal", "User:alice"), set()),
        (ALICE, {"R", "W", "P"}),
        (("--host", "::1"), {"G"}),
        (("--prefixed",), {"P"}),
        (("--producer", *ALICE, "--topic", "orders"), {"W"}),
    ],
)
def test_list_prints_the_acls_that_match(
    several: Data, arguments: tuple[str, ...], entries: set[str]
) -> None:
    names = {
        "R": "topic orders Read alice",
        "W": "topic orders Write alice",
        "P": "topic ord* Read alice",
        "D": "topic * Delete * deny",
        "G": "group g Read bob ::1",
    }
    assert several.entries("list", *arguments) == {names[each] for each in entries}


def test_delete_removes_only_the_matching_acls(several: Data) -> None:
    before = several.entries()
    gone = several.entries("delete", "--topic", "orders", "-y")
    assert gone == {"topic orders Read alice", "topic orders Write alice"}
    assert several.entries() == before - gone
    gone_too = several.entries("delete", "--topic", "ord", "--prefixed", "-y")
    assert gone_too == {"topic ord* Read alice"}
    assert several.entries() == before - gone - gone_too


def test_a_dry_run_prints_the_acls_and_deletes_nothing(several: Data) -> None:
    before = several.entries()
    assert several.entries("delete", *ALICE, "--dry-run") == {e for e in before if "alice" in e}
    assert several.entries() == before


def test_no_entry_is_deleted_without_a_confirmation(several: Data) -> None:
    before = several.entries()
    assert "name the entries" in several.run("delete", "-y", code=2).stderr
    assert "--yes" in several.run("delete", *ALICE, code=2).stderr
    assert several.entries() == before


def test_delete_on_a_terminal_asks_for_confirmation(
    several: Data, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = several.entries()
    monkeypatch.setattr("headrace.cli.commands.acl.sys", _Terminal)
    shown = CliRunner().invoke(
        main, ("acl", "delete", *ALICE, "--data", str(several.path)), input="n\n"
    )
    assert shown.exit_code == 1
    assert "Delete 3 entries?" in shown.stderr
    assert shown.stderr.count("User:alice") == 3
    assert several.entries() == before


class _Terminal:
    class stdin:  # noqa: N801 - the name that `sys` has
        @staticmethod
        def isatty() -> bool:
            return True


def test_a_missing_entry_is_reported_and_not_deleted(several: Data) -> None:
    assert several.entries("delete", "--topic", "other", "-y") == set()


def test_a_broker_that_runs_is_to_be_asked(data: Data) -> None:
    stores = open_stores([data.path])
    try:
        told = data.run("list", code=1).stderr
    finally:
        stores.close()
    assert "-b HOST:PORT" in told
