"""Every page with programs or commands has a test that runs them, and each command on a page exists."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest

from headrace.cli import main

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
EXECUTABLE = {"python", "console", "sh", "bash", "shell"}
COMMAND_BLOCKS = (EXECUTABLE - {"python"}) | {"text"}
GENERATED = {"cli.md", "python-api.md"}

TESTS = {
    "README.md": "docs/test_readme.py",
    "docs/design/protocol-messages.md": "docs/test_pages_are_run.py",
    "docs/guides/archive.md": "integration/spark/test_archive.py",
    "docs/guides/asyncio.md": "docs/test_asyncio_page.py",
    "docs/guides/authentication.md": "docs/test_security_page.py",
    "docs/guides/beyond-kafka.md": "docs/test_beyond_kafka_page.py",
    "docs/guides/bridge.md": "docs/test_kinesis_bridge_pages.py",
    "docs/guides/client-security.md": "docs/test_client_security_page.py",
    "docs/guides/clients.md": "docs/test_clients_page.py",
    "docs/guides/command-line.md": "docs/test_command_line_page.py",
    "docs/guides/dead-letters.md": "docs/test_dead_letters_page.py",
    "docs/guides/decoding.md": "integration/spark/test_decoding.py",
    "docs/guides/duplicates.md": "docs/test_workers_page.py",
    "docs/guides/embedded.md": "docs/test_embedded_page.py",
    "docs/guides/exactly-once.md": "docs/test_workers_page.py",
    "docs/guides/group-protocols.md": "docs/test_group_protocols_page.py",
    "docs/guides/groups.md": "docs/test_groups_page.py",
    "docs/guides/kinesis-consumer.md": "docs/test_kinesis_page.py",
    "docs/guides/kinesis-producer.md": "docs/test_kinesis_bridge_pages.py",
    "docs/guides/kinesis.md": "docs/test_kinesis_page.py",
    "docs/guides/listeners.md": "docs/test_security_listeners.py",
    "docs/guides/operations.md": "docs/test_operations_page.py",
    "docs/guides/permissions.md": "docs/test_security_page.py",
    "docs/guides/pipelines.md": "integration/spark/test_pipelines_page.py",
    "docs/guides/security.md": "docs/test_security_programs.py",
    "docs/guides/spark-kinesis.md": "integration/spark/kinesis/test_kinesis_document.py",
    "docs/guides/spark.md": "integration/spark/test_docs.py",
    "docs/guides/testing-kinesis.md": "docs/test_testing_kinesis_page.py",
    "docs/guides/testing.md": "docs/test_testing_page.py",
    "docs/guides/transactions.md": "docs/test_transactions_page.py",
    "docs/guides/workers.md": "docs/test_workers_page.py",
    "docs/reference/kinesis-leases.md": "docs/test_kinesis_leases_page.py",
    "docs/start/coming-from-faststream.md": "docs/test_coming_from_pages.py",
    "docs/start/coming-from-kafka.md": "docs/test_coming_from_pages.py",
    "docs/start/coming-from-kcl.md": "docs/test_coming_from_pages.py",
    "docs/start/coming-from-spark.md": "integration/spark/test_coming_from_page.py",
    "docs/start/coming-from-testcontainers.md": "docs/test_coming_from_pages.py",
    "docs/start/demo.md": "docs/test_readme.py",
    "docs/start/first-steps.md": "docs/test_readme.py",
    "docs/start/security-walk.md": "docs/test_security_walk.py",
}
"""The test that runs the programs and commands of each page. Those of docs/reports run suites for minutes."""


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def blocks(page: Path) -> list[tuple[str, str]]:
    return [] if page.name in GENERATED else BLOCK.findall(page.read_text())


def test_every_page_with_programs_or_commands_has_a_test() -> None:
    pages = [page for page in PAGES if page.parent.name != "reports"]
    executable = {name_of(page) for page in pages for kind, _ in blocks(page) if kind in EXECUTABLE}
    assert executable == TESTS.keys()


def test_the_program_about_message_classes_decodes_what_it_encodes() -> None:
    page = ROOT / "docs" / "design" / "protocol-messages.md"
    (program,) = (text for kind, text in blocks(page) if kind == "python")
    names: dict[str, Any] = {}
    exec(compile(program, page.name, "exec", dont_inherit=True), names)
    assert names["decoded"] == names["response"]
    assert names["position"] == len(names["view"])


@pytest.mark.parametrize("page", TESTS)
def test_the_test_of_a_page_reads_the_page(page: str) -> None:
    name = Path(page).name
    text = (ROOT / "tests" / TESTS[page]).read_text()
    prefix, _, variable = Path(page).stem.partition("coming-from-")
    assert (
        name in text or f'"{Path(page).stem}"' in text or (not prefix and f'"{variable}"' in text)
    )


def shown_commands(page: Path) -> Iterator[str]:
    """Yield the `headrace` commands in the blocks of a page, without what a pipe or a redirection adds."""
    for kind, text in blocks(page):
        if kind in COMMAND_BLOCKS:
            prompt = r"^\$ " if kind == "console" else "^"
            for line in re.findall(prompt + r"(.*)$", text.replace("\\\n", " "), re.MULTILINE):
                for part in re.split(r"\||&&|;", line.partition("  #")[0]):
                    command = re.sub(r"(?<!\S)[<>&].*", "", part).strip()
                    if command.startswith("headrace "):
                        yield command


def parse(command: str) -> None:
    """Find a command and parse its options; nothing runs.

    Raises:
        click.UsageError: The command or one of its options does not exist.
    """
    words = shlex.split(command)[1:]
    found, words = resolve(words)
    if found is not main:
        found.make_parser(click.Context(found, ignore_unknown_options=False)).parse_args(words)


def resolve(words: list[str]) -> tuple[click.Command, list[str]]:
    """Return the command that begins some words, and the words after it."""
    found: click.Command = main
    while isinstance(found, click.Group) and words and not words[0].startswith("-"):
        next_one = found.get_command(click.Context(found), words[0])
        if next_one is None:
            raise click.UsageError(f"{found.name} has no command {words[0]!r}")
        found, words = next_one, words[1:]
    return found, words


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_command_of_a_page_exists_with_its_options(page: Path) -> None:
    for command in shown_commands(page):
        try:
            parse(command)
        except click.UsageError as error:
            pytest.fail(f"{command}: {error.format_message()}")


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_command_that_a_sentence_names_exists(page: Path) -> None:
    prose = BLOCK.sub("", page.read_text())
    for command in re.findall(r"`headrace ([a-z][a-z -]*[a-z])", prose):
        try:
            resolve(command.split())
        except click.UsageError as error:
            pytest.fail(f"{command}: {error.format_message()}")
