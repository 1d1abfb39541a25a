"""Usage of the client commands, as far as it needs no broker."""

from __future__ import annotations

import re

import pytest
from click.testing import CliRunner

from headrace.cli import main
from headrace.cli.commands.consume import HELP_ON_TEMPLATES as CONSUME_HELP
from headrace.cli.commands.produce import HELP_ON_TEMPLATES as PRODUCE_HELP
from headrace.cli.formats.reader import compile_reader
from headrace.cli.formats.template import parse_template
from headrace.cli.output.printing import bytes_fields
from headrace.cli.output.terminal import printable

NOWHERE = ("-b", "127.0.0.1:1")


def run(*arguments: str):
    return CliRunner().invoke(main, arguments)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("topic", "delete", "t"), "needs --yes"),
        (("topic", "alter", "t"), "nothing to change"),
        (("topic", "alter", "t", "--append", "cleanup.policy"), "--append expects KEY=VALUE"),
        (("topic", "add-partitions", "t", "-n", "0"), "x>=1"),
        (("topic", "truncate", "t", "-o", "5"), "needs --yes"),
        (("topic", "truncate", "t", "-o", "1:5", "-y"), "--offset expects a number"),
        (("topic", "truncate", "t", "-o", "yesterday", "-y"), "is not an offset"),
        (("group", "delete", "g"), "needs --yes"),
        (("group", "create", "g", "-t", "t", "--pattern", "t"), "exclude each other"),
        (("group", "attach", "g"), "either TOPICs or --pattern"),
        (("group", "attach", "g", "t", "--pattern", "t"), "either TOPICs or --pattern"),
        (("group", "detach", "g"), "either TOPICs or --all"),
        (("group", "remove-member", "g"), "give a MEMBER"),
        (("group", "remove-member", "g", "m"), "needs --yes"),
        (("group", "stop-member", "g"), "give a MEMBER"),
        (("group", "stop-member", "g", "m", "--timeout", "soon"), "soon"),
        (("group", "reset", "g", "--to", "5"), "--yes or --dry-run"),
        (("group", "reset", "g", "-y"), "either --to or --from-file"),
        (("group", "reset", "g", "--to", "+-5", "-y"), "--to expects earliest"),
        (("group", "reset", "g", "--to", "@yesterday", "-y"), "is not a time"),
        (("group", "reset", "g", "--to", "5", "-t", "t:x", "-y"), "TOPIC:N,N"),
        (("group", "lag", "g", "-n", "3"), "--count needs --watch"),
        (("group", "delete-offsets", "g", "-t", "t:x", "-y"), "TOPIC:N,N"),
        (("quota", "alter", "-s", "producer_byte_rate=1"), "give --user or --client-id"),
        (("quota", "alter", "-c", "x"), "nothing to change"),
        (("quota", "alter", "-c", "x", "-s", "producer_byte_rate=much"), "expects a number"),
        (("topic", "create", "t", "-c", "retention"), "--config expects KEY=VALUE"),
        (("topic", "create", "t", "-p", "0"), "x>=1"),
        (("topic", "list", "-X", "client.id"), "-X expects KEY=VALUE"),
        (("topic", "list", "-X", "linger.ms=4"), "belongs to a producer"),
        (("produce",), "give a TOPIC"),
        (("produce", "t", "-H", "name"), "--header expects NAME=VALUE"),
        (("produce", "t", "--ttl", "5"), "--ttl: '5' is not a duration"),
        (("produce", "t", "--delay", "1h", "--deliver-at", "2031-01-31"), "exclude each other"),
        (("produce", "t", "--deliver-at", "soon"), "--deliver-at: 'soon' is not a time"),
        (("produce", "t", "--tag", ""), "a tag is a text of 1 to 255 bytes"),
        (("produce", "t", "--ttl", "9999999d"), "milliseconds from 0 to"),
        (("produce", "t", "-f", "%k%v"), "does not define the end of %k"),
        (("consume", "t", "-f", "%v", "--format", "json"), "exclude each other"),
        (("consume", "t", "-g", "g", "-p", "1"), "the group assigns the partitions"),
        (("consume", "t", "-g", "g", "-o", "5"), "--offset must be start or end"),
        (("consume", "t", "-p", "one"), "--partition expects numbers"),
        (("consume", "t", "--tag", ""), "a tag is a text of 1 to 255 bytes"),
        (
            ("group", "config", "g", "--set", "consumer.heartbeat.interval.ms"),
            "--set expects KEY=VALUE",
        ),
        (("group", "config", "g", "--dry-run"), "nothing to change"),
        (("consume", "t", "-o", "yesterday"), "is not an offset"),
    ],
)
def test_wrong_usage_is_reported_before_a_connection_opens(
    arguments: tuple[str, ...], text: str
) -> None:
    result = run(*arguments, *NOWHERE)
    assert result.exit_code == 2, result.output
    assert text in result.output


@pytest.mark.parametrize(
    "arguments",
    [
        ("topic", "list"),
        ("group", "list"),
        ("consume", "t"),
        ("produce", "t"),
        ("topic", "describe", "t"),
    ],
)
def test_an_unreachable_broker_is_reported_in_one_line(arguments: tuple[str, ...]) -> None:
    result = run(*arguments, *NOWHERE)
    assert result.exit_code == 1
    assert result.stdout == ""
    assert result.stderr.count("\n") == 1
    assert "cannot connect to 127.0.0.1:1" in result.stderr
    assert "headrace dev" in result.stderr


def test_every_template_of_the_help_works() -> None:
    templates = re.findall(r"-f '([^']*)'", CONSUME_HELP)
    assert len(templates) == 2
    for template in templates:
        parse_template(template)
    templates = re.findall(r"-f '([^']*)'", PRODUCE_HELP)
    assert len(templates) == 2
    for template in templates:
        compile_reader(parse_template(template))


def test_records_do_not_drive_the_terminal() -> None:
    assert printable("été \N{SNOWMAN}") == "été \N{SNOWMAN}"
    assert printable("a\x1b[2Jb\n\x9b") == "a\\x1b[2Jb\\n\\x9b"


def test_bytes_in_json() -> None:
    assert bytes_fields("key", None) == {"key": None}
    assert bytes_fields("key", "é".encode()) == {"key": "é"}
    assert bytes_fields("key", b"\xff") == {"key": "/w==", "key_encoding": "base64"}


@pytest.mark.parametrize("text", ["", "{}x", '[{"topic": "t"}]', "[1]", '{"a": 1}'])
def test_files_that_hold_no_offsets(text: str) -> None:
    arguments = ("group", "reset", "g", "--from-file", "-", "-y", *NOWHERE)
    result = CliRunner().invoke(main, arguments, input=text)
    assert result.exit_code == 2, result.output
    assert "not the output of `group offsets --format json`" in result.output
