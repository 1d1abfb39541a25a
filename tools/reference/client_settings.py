"""Settings of producers, consumers and admin clients."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields
from typing import Any, Final

from headrace import aio
from headrace.clients import config as client_config
from headrace.clients.config import ALIASES, ClientConfig, ConsumerConfig, ProducerConfig
from headrace.clients.security import JAVA_ONLY, ClientSecurityConfig
from headrace.errors import ConfigError
from tools.reference.declared import Declared, arguments_of, attribute_docs
from tools.reference.markdown import code, paragraphs, prose, table, unit_of, value_of

PAGE_HEAD: Final = """\
# Settings of clients

The properties of `Producer`, `Consumer` and `Admin`, blocking and asyncio, under the names of Kafka's Java client. Most
names of librdkafka work too: see the column "other names". A program writes a property as a keyword argument with
underscores (`headrace.Consumer("localhost:9092", max_poll_records=100)`) or in a dictionary with dots
(`**{"max.poll.records": 100}`). The commands of `headrace` take properties with `-X NAME=VALUE` or in a file
(`--config-file`), and there durations and sizes may have units: [Settings](settings.md).

A property cannot change after the client was created. An unknown name is an error, which names the nearest known name.
"""
TYPES: Final = {"bool": "boolean", "int": "integer"}
WORDS: Final = (
    "classic", "consumer", "auto", "none", "gzip", "snappy", "lz4", "zstd", "all", "0", "1", "2", "earliest", "latest",
    "smallest", "largest", "beginning", "end", "error", "read_uncommitted", "read_committed", "https", "PLAINTEXT",
    "SSL", "SASL_PLAINTEXT", "SASL_SSL", "PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER",
)  # fmt: skip
"""Words that some property takes; a property's own parser decides which of them are its values."""
ARGUMENTS: Final = (("Producer", aio.Producer), ("Consumer", aio.Consumer), ("Admin", aio.Admin))


def clients_page() -> str:
    """Return the page of clients' settings."""
    security = {each.name for each in fields(ClientSecurityConfig)}
    general = {each.name for each in fields(ClientConfig)}
    text = PAGE_HEAD
    for title, owner, leave_out in (
        ("All clients", ClientConfig, security),
        ("Producers", ProducerConfig, general),
        ("Consumers", ConsumerConfig, general),
        ("Encryption and authentication", ClientSecurityConfig, set[str]()),
    ):
        text += f"\n## {title}\n\n{_properties(owner, leave_out)}"
    java = ", ".join(map(code, JAVA_ONLY))
    text += "\n" + paragraphs(
        f"These properties of the Java client are translated: {java}. A key store or trust store must be a PEM file."
    )
    text += "\n## Arguments of constructors\n\n" + paragraphs(
        "These arguments have no name with dots. All other keyword arguments are properties."
    )
    for name, client in ARGUMENTS:
        taken = {each.name for each in fields(ConsumerConfig)} | {
            each.name for each in fields(ProducerConfig)
        }
        rows = [each for each in arguments_of(client.__init__) if each.name not in taken - {"tags"}]
        text += f"\n### `{name}`\n\n{arguments_table(each for each in rows if each.name != '**properties')}"
    return text


def arguments_table(rows: Iterable[Declared]) -> str:
    """Return a table of arguments."""
    return table(
        ("argument", "type", "default", "meaning"),
        ((code(each.name), each.type, each.default, each.meaning) for each in rows),
    )


def _properties(owner: type[Any], leave_out: set[str]) -> str:
    docs = attribute_docs(owner)
    rows = []
    for each in fields(owner):
        if each.name in leave_out:
            continue
        name = each.name.replace("_", ".")
        unit = unit_of(each.name)
        kind = TYPES.get(str(each.type), "function" if "Callback" in str(each.type) else "text")
        others = sorted(
            other for other, target in ALIASES.items() if target == name and other != name
        )
        rows.append(
            (
                code(name),
                f"{kind}, {unit}" if unit and kind == "integer" else kind,
                value_of(each.name, each.default),
                ", ".join(map(code, choices_of(each.name))),
                ", ".join(map(code, others)),
                prose(docs.get(each.name, "")),
            )
        )
    return table(("setting", "type", "default", "values", "other names", "meaning"), rows)


def choices_of(attribute: str) -> list[str]:
    """Return the words that a property takes; none if it takes any text or number."""
    parse = client_config._SPECIAL.get(attribute)  # noqa: SLF001 - the one table of them
    if parse is None or attribute in {"tags", "oauth_cb", "sasl_oauthbearer_token"}:
        return []
    return [word for word in WORDS if _takes(parse, attribute, word)]


def _takes(parse: Any, attribute: str, word: str) -> bool:
    try:
        parse(attribute, word)
    except ConfigError:
        return False
    return True
