"""`headrace serve`: a broker with its data in a directory. Also the parts that `serve` and `dev` share."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from headrace.cli.arguments.settings_files import (
    broker_settings,
    split_assignments,
    warn_of_visible_secrets,
)
from headrace.cli.command_group import command
from headrace.cli.output.printing import say
from headrace.errors import ConfigError, HeadraceError

if TYPE_CHECKING:
    from headrace.config.broker import BrokerConfig
    from headrace.config.listeners import Listener

F = TypeVar("F", bound=Callable[..., Any])

EXIT_FAILED = 1
EXIT_USAGE = 2

_CLUSTER_DEFAULTS = {
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.replication.factor": "1",
}
"""The brokers of one machine fail together. Replicas would cost what the cores are for."""

_OPTIONS = (
    click.option(
        "--listen",
        metavar="[NAME://]HOST:PORT",
        multiple=True,
        help="The address of a listener; repeatable. NAME is the listener's name, or PLAINTEXT, SSL, SASL_PLAINTEXT or "
        "SASL_SSL.  [default: 127.0.0.1:9092]",
    ),
    click.option(
        "--config",
        "assignments",
        metavar="KEY=VALUE",
        multiple=True,
        help="A broker setting by Kafka's name, e.g. log.retention.ms=7d or log.segment.bytes=64MiB; repeatable.",
    ),
    click.option(
        "--config-file",
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        help="Broker settings: a Java properties file (server.properties) or TOML.",
    ),
    click.option(
        "--insecure",
        is_flag=True,
        help="Allow listeners beyond loopback that do not both encrypt and authenticate.",
    ),
    click.option(
        "--brokers",
        type=click.IntRange(min=2),
        help="Run so many brokers of one cluster, each in a process and on a port of its own, to use more cores.",
    ),
    click.option(
        "--log-level",
        type=click.Choice(["debug", "info", "warning", "error"]),
        default="info",
        show_default=True,
        help="The lowest level of log lines on standard error.",
    ),
    click.option(
        "--log-format", type=click.Choice(["text", "json"]), default="text", show_default=True, help="The log format."
    ),
    click.option(
        "--loop",
        type=click.Choice(["auto", "asyncio", "uvloop"]),
        default="auto",
        show_default=True,
        help="The event loop; auto uses uvloop if it is installed.",
    ),
)  # fmt: skip


def server_options(command: F) -> F:
    """Add the options that `serve` and `dev` share."""
    for add in reversed(_OPTIONS):
        command = add(command)
    return command


@command()
@click.option(
    "--data",
    type=click.Path(file_okay=False, path_type=Path),
    multiple=True,
    help="Data directory; repeatable, for several disks. The first one also holds the metadata.  "
    "[default: ./headrace-data]",
)
@click.option(
    "--durability",
    metavar="fsync|interval:MS|os",
    help="What an acknowledgement means, unless a topic has its own setting: synced to disk, synced within MS "
    "milliseconds, or in the page cache.  [default: fsync]",
)
@click.option(
    "--zookeeper",
    metavar="HOST:PORT[,HOST:PORT...][/CHROOT]",
    help="The servers of ZooKeeper that coordinates the cluster of this broker (zookeeper.connect). Needs --broker-id.",
)
@click.option(
    "--broker-id", metavar="N", help="The number of this broker in its cluster (broker.id)."
)
@click.option("--rack", metavar="NAME", help="The rack of this broker (broker.rack).")
@click.option(
    "--no-guard",
    is_flag=True,
    help="Start no guard: when the broker dies, other brokers wait for zookeeper.session.timeout.ms.",
)
@server_options
def serve(
    data: tuple[Path, ...], durability: str | None, *, no_guard: bool, **options: Any
) -> None:
    """Run a broker that keeps its data in a directory, or in several.

    It prints one line, `ready kafka=HOST:PORT data=DIR pid=N`, when it accepts connections, and stops on SIGTERM or
    SIGINT. Exit codes: 0 stopped by a signal, 1 the data cannot be used or the disk failed, 2 wrong usage or
    configuration.

    With --zookeeper the broker is one of a cluster, usually each on a machine of its own. It accepts connections when
    its logs are recovered and the cluster knows it. Before it stops, other brokers take over its partitions, for at
    most 30 seconds. The line ends with `cluster=ID broker=N`. The command stays as the guard of the broker, which is a
    process of its own: when the broker dies, the guard ends its ZooKeeper session, so that other brokers take over
    within a second.

    With --brokers N it runs N brokers of one cluster, to use more cores. It makes nothing safer, because the brokers
    are on one machine. Broker I has the ports of --listen plus I-1, and its data in DIR/broker-I. Topics have one
    replica, unless they are created with more. The line is
    `ready kafka=HOST:PORT,HOST:PORT data=DIR pid=N cluster=ID brokers=N`. A broker that dies is started again.
    """
    settings = {"durability": durability} if durability is not None else {}
    flags = {"zookeeper.connect": "zookeeper", "broker.id": "broker_id", "broker.rack": "rack"}
    of_cluster = {name: options.pop(flag) for name, flag in flags.items()}
    given = (f"{name}={value}" for name, value in of_cluster.items() if value is not None)
    options["assignments"] += tuple(given)
    run_server(
        data=data,
        default_data=Path("headrace-data"),
        settings=settings,
        guards=not no_guard,
        **options,
    )


def run_server(
    *,
    data: tuple[Path, ...],
    listen: tuple[str, ...],
    assignments: tuple[str, ...],
    config_file: Path | None,
    insecure: bool,
    brokers: int | None = None,
    log_level: str,
    log_format: str,
    loop: str,
    settings: Mapping[str, str] | None = None,
    defaults: Mapping[str, str] | None = None,
    default_data: Path | None = None,
    guards: bool = False,
) -> None:
    """Run a server until it stops, and exit with its exit code.

    Args:
        data: the data directories as the user gave them.
        listen: HOST:PORT or NAME://HOST:PORT, as the user gave them.
        assignments: KEY=VALUE settings.
        config_file: a file of settings; flags and assignments override it.
        insecure: allow an unprotected listener beyond loopback.
        brokers: the number of brokers of a cluster on this machine; None for one broker in this process.
        log_level: least level of a log line.
        log_format: "text" or "json".
        loop: "auto", "asyncio" or "uvloop".
        settings: settings of other flags; they override everything else.
        defaults: settings with the lowest precedence.
        default_data: the data directory if neither `data` nor `log.dirs` name one; None for memory, whatever
            `log.dirs` says.
        guards: whether a broker of a cluster with ZooKeeper gets a guard.
    """
    # Imported here: `headrace serve --help` needs none of it.
    from headrace.config.broker import parse_broker_config
    from headrace.server.listen import chosen_listeners
    from headrace.server.log import LoggingJournal, configure_logging

    configure_logging(log_level, log_format)
    try:
        journal = LoggingJournal()
        given = split_assignments(assignments)
        warn_of_visible_secrets(given, journal)
        values = broker_settings(config_file, given, journal)
        log_dirs = values.pop("log.dirs", values.pop("log.dir", None))
        if not data and default_data is not None:
            data = (default_data,) if log_dirs is None else _directories(log_dirs)
        values["log.dirs"] = ",".join(str(directory.absolute()) for directory in data)
        values = {**(defaults or {}), **values, **(settings or {})}
        config = parse_broker_config(values)
        listeners = chosen_listeners(listen, config, insecure=insecure)
        if brokers is not None:
            log = {"log_level": log_level, "log_format": log_format}
            others = {"insecure": insecure, "loop": loop, **log}
            sys.exit(_run_brokers(brokers, values, listeners, data, **others))
        guard_log = (log_level, log_format) if guards else None
        sys.exit(_run_broker(config, values, listeners, data, loop=loop, guard_log=guard_log))
    except HeadraceError as error:
        _leave(error, EXIT_USAGE if isinstance(error, ConfigError) else EXIT_FAILED)


def _run_broker(
    config: BrokerConfig,
    values: Mapping[str, str],
    listeners: Sequence[Listener],
    data: Sequence[Path],
    *,
    loop: str,
    guard_log: tuple[str, str] | None,
) -> int:
    from headrace.server.zookeeper import zookeeper_membership

    config = replace(config, listeners=",".join(map(str, listeners)))
    membership = zookeeper_membership(config, values)
    if membership is not None and guard_log is not None:
        from headrace.server.guard.broker_side import fork_guarded

        membership.guard = fork_guarded(*guard_log)
    from headrace.server.process import ServeOptions, run

    return run(
        ServeOptions(
            listeners=listeners, data=data, config=config, loop=loop, membership=membership
        )
    )


def _run_brokers(
    brokers: int,
    values: Mapping[str, str],
    listeners: Sequence[Listener],
    data: Sequence[Path],
    **others: Any,
) -> int:
    from headrace.server.supervisor.settings import MemberSettings
    from headrace.server.supervisor.supervisor import supervise

    settings = MemberSettings(
        values={**_CLUSTER_DEFAULTS, **values},
        listeners=[str(listener) for listener in listeners],
        data=[str(directory.absolute()) for directory in data],
        **others,
    )
    return supervise(brokers, settings)


def _directories(log_dirs: str) -> tuple[Path, ...]:
    names = [name.strip() for name in log_dirs.split(",") if name.strip()]
    if not names:
        raise ConfigError(
            f"log.dirs {log_dirs!r}: expected a directory, or several with commas between"
        )
    return tuple(map(Path, names))


def _leave(error: Exception, exit_code: int) -> None:
    say(f"headrace: {error}")
    sys.exit(exit_code)
