"""`headrace doctor`: check the setup, and say how to repair it."""

from __future__ import annotations

import functools
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import click
from click.core import ParameterSource

from headrace.cli.arguments.connection import open_client
from headrace.cli.arguments.options import client_options, format_option
from headrace.cli.arguments.settings_files import split_assignments
from headrace.cli.command_group import CommandGroup
from headrace.cli.output.printing import NOTHING_LISTENS, guarded, print_json, print_table, say
from headrace.findings import Finding

_WRONG_WAY: Final = "check the address, and security.protocol and sasl.* in --config-file"


@click.group(cls=CommandGroup)
def doctor() -> None:
    """Check what is missing or wrong, and say how to repair it."""


@doctor.command("spark")
@click.option(
    "--session", is_flag=True, help="Also start Spark, and check that it finds the format."
)
@click.option("--topic", help="With --session: a topic that Spark reads as a test.")
@client_options
def spark(
    bootstrap: str, properties: dict[str, Any], *, as_json: bool, session: bool, topic: str | None
) -> None:
    """Check Java, PySpark and its packages, and with --bootstrap the connection to a broker.

    Exit code 1 if something is wrong. Optional parts, such as the jar of Spark's own connector, are reported as absent,
    not as wrong.
    """
    if topic is not None and not session:
        raise click.UsageError("--topic needs --session")
    from headrace.spark import doctor as checks

    findings = list(checks.installation())
    source = click.get_current_context().get_parameter_source("bootstrap")
    asked = source is not ParameterSource.DEFAULT or "bootstrap.servers" in properties
    if topic is not None and not asked:
        raise click.UsageError("--topic needs --bootstrap")
    if asked:
        where = properties.get("bootstrap.servers", bootstrap)
        findings.append(checks.examined("broker", functools.partial(_broker, where, properties)))
    else:
        findings.append(Finding("broker", "absent", "not checked; give --bootstrap HOST:PORT"))
    if session and not any(each.state == "fault" for each in findings):
        given = {"bootstrap.servers": bootstrap, **properties} if asked else {}
        start = functools.partial(checks.session, given, topic)
        findings.append(checks.examined("session", start))
    _print(findings, as_json=as_json)
    if any(each.state == "fault" for each in findings):
        raise SystemExit(1)


@doctor.command("broker")
@click.option(
    "--data",
    type=click.Path(file_okay=False, path_type=Path),
    multiple=True,
    help="A data directory; repeatable.  [default: the directories of log.dirs]",
)
@click.option(
    "--config-file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="The file of settings with which the broker starts.",
)
@click.option(
    "--config",
    "given",
    metavar="KEY=VALUE",
    multiple=True,
    help="A broker setting by Kafka's name; repeatable.",
)
@format_option
@guarded
def broker(
    *, data: tuple[Path, ...], config_file: Path | None, given: tuple[str, ...], output_format: str
) -> None:
    """Check the configuration of a broker: settings, secrets, data directories, certificates and revocation lists.

    Run it as the user that runs the broker. It changes nothing and contacts no broker.

    Exit code 1 if something is wrong.
    """
    from headrace.cli.commands.doctor_broker import examine

    findings = list(examine(config_file, split_assignments(given), data))
    _print(findings, as_json=output_format == "json")
    if any(each.state == "fault" for each in findings):
        raise SystemExit(1)


def _broker(where: str, properties: dict[str, Any]) -> str:
    from headrace.cli.arguments.client_settings import general
    from headrace.errors import HeadraceError
    from headrace.spark.doctor import FaultError

    try:
        with open_client(where, general(properties)) as client:
            metadata = client.metadata(None)
    except HeadraceError as error:
        refused = "cannot connect" in str(error)
        raise FaultError(str(error), NOTHING_LISTENS if refused else _WRONG_WAY) from None
    topics = sum(not each.is_internal for each in metadata.topics.values())
    addresses = ", ".join(f"{each.host}:{each.port}" for each in metadata.brokers.values())
    return f"{addresses}, {topics} topics"


def _print(findings: list[Finding], *, as_json: bool) -> None:
    if as_json:
        print_json([asdict(each) for each in findings])
        return
    print_table(
        ("CHECK", "STATE", "FOUND"), [(each.check, each.state, each.found) for each in findings]
    )
    for each in findings:
        if each.state == "fault":
            say(f"{each.check}: {each.found}. To repair it: {each.remedy or 'see above'}")
