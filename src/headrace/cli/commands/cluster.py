"""`headrace cluster`: brokers, features, versions and log directories."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from headrace.cli.arguments.completion import complete_topics
from headrace.cli.arguments.connection import open_admin
from headrace.cli.arguments.options import client_options
from headrace.cli.command_group import CommandGroup
from headrace.cli.output.printing import print_facts, print_json, print_table, say

if TYPE_CHECKING:
    from headrace.clients.admin.blocking import Admin
    from headrace.clients.flows.cluster_admin import LogDirDescription


@click.group(cls=CommandGroup)
def cluster() -> None:
    """Show the brokers of a cluster and their APIs and log directories, on Headrace or any Kafka."""


@cluster.command("info")
@client_options
def info(bootstrap: str, properties: dict[str, Any], *, as_json: bool) -> None:
    """Show the cluster's id, controller, brokers, features and log directories.

    Log directories need the permission to describe the cluster; without it a note says that they are left out. Kafka
    does not report its release; `metadata.version` comes closest.
    """
    with open_admin(bootstrap, properties) as admin:
        described = admin.describe_cluster()
        spoken = admin.features()
        directories, refusal = _log_dirs(admin)
    document: dict[str, Any] = {
        "cluster_id": described.cluster_id,
        "headrace": spoken.is_headrace,
        "controller": described.controller_id if described.controller_id >= 0 else None,
        "brokers": [
            {
                "broker": each.node_id,
                "host": each.host,
                "port": each.port,
                "rack": each.rack,
                "controller": each.node_id == described.controller_id,
            }
            for each in described.brokers
        ],
        "features": [
            {
                "feature": each.name,
                "level": each.level,
                "min_level": each.min_level,
                "max_level": each.max_level,
            }
            for each in spoken.features
        ],
        "log_dirs": None if directories is None else [_directory(each) for each in directories],
    }
    if as_json:
        print_json(document)
    else:
        _print_info(document)
    if refusal is not None:
        say(f"Log directories are left out: {refusal}")


def _log_dirs(admin: Admin) -> tuple[list[LogDirDescription] | None, str | None]:
    """Return the log directories, or the error if the client is not authorized."""
    from headrace.errors import ApiError, ErrorCode

    hidden = {ErrorCode.CLUSTER_AUTHORIZATION_FAILED, ErrorCode.UNSUPPORTED_VERSION}
    try:
        return admin.log_dirs(), None
    except ApiError as error:
        if error.code not in hidden:
            raise
        return None, str(error)


def _directory(found: LogDirDescription) -> dict[str, Any]:
    return {
        "broker": found.broker,
        "path": found.path,
        "state": "ok" if not found.error else found.error.name,
        "partitions": len(found.sizes),
        "bytes": sum(found.sizes.values()),
        "total_bytes": found.total_bytes,
        "usable_bytes": found.usable_bytes,
    }


def _print_info(document: dict[str, Any]) -> None:
    facts = {
        "cluster id": document["cluster_id"],
        "server": "Headrace" if document["headrace"] else "Apache Kafka, or compatible",
        "controller": "-" if document["controller"] is None else document["controller"],
    }
    print_facts(facts, 12)
    click.echo()
    print_table(
        ("BROKER", "HOST", "PORT", "RACK"),
        [
            (each["broker"], each["host"], each["port"], each["rack"])
            for each in document["brokers"]
        ],
    )
    if document["features"]:
        click.echo()
        columns = ("FEATURE", "LEVEL", "MIN", "MAX")
        print_table(columns, [list(each.values()) for each in document["features"]])
    if document["log_dirs"] is not None:
        click.echo()
        _print_directories(document["log_dirs"])


def _print_directories(rows: list[dict[str, Any]]) -> None:
    columns = ("BROKER", "LOG DIRECTORY", "STATE", "PARTITIONS", "BYTES", "TOTAL", "USABLE")
    print_table(columns, [list(row.values()) for row in rows])


@cluster.command("log-dirs")
@click.option(
    "-t",
    "--topic",
    "topics",
    multiple=True,
    metavar="TOPIC",
    shell_complete=complete_topics,
    help="Only partitions of this topic; repeatable.",
)
@client_options
def log_dirs(
    bootstrap: str, properties: dict[str, Any], *, topics: tuple[str, ...], as_json: bool
) -> None:
    """Show the size of each partition in bytes, by broker and log directory, the largest first.

    Needs the permission to describe the cluster.
    """
    with open_admin(bootstrap, properties) as admin:
        found = admin.log_dirs()
    rows: list[dict[str, Any]] = [
        {
            "broker": each.broker,
            "path": each.path,
            "topic": where.topic,
            "partition": where.partition,
            "bytes": size,
        }
        for each in found
        for where, size in each.sizes.items()
        if not topics or where.topic in topics
    ]
    rows.sort(key=lambda row: (-row["bytes"], row["topic"], row["partition"]))
    if as_json:
        print_json(rows)
    else:
        columns = ("BROKER", "LOG DIRECTORY", "TOPIC", "PARTITION", "BYTES")
        print_table(columns, [list(row.values()) for row in rows])


@cluster.command("apis")
@client_options
def apis(bootstrap: str, properties: dict[str, Any], *, as_json: bool) -> None:
    """Show the versions of each API that a broker supports."""
    from headrace.protocol.api_keys import ApiKey

    with open_admin(bootstrap, properties) as admin:
        spoken = admin.features().apis
    names = {int(key): key.name for key in ApiKey}
    rows = [
        {"key": key, "api": names.get(key), "min_version": low, "max_version": high}
        for key, (low, high) in sorted(spoken.items())
    ]
    if as_json:
        print_json(rows)
    else:
        print_table(("KEY", "API", "MIN", "MAX"), [list(row.values()) for row in rows])
