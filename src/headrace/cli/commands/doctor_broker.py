"""The checks of `headrace doctor broker`: settings, data directories, certificates. They change nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from headrace.cli.arguments.settings_files import broker_settings
from headrace.config.broker import BrokerConfig, parse_broker_config
from headrace.config.listeners import Listener
from headrace.errors import ConfigError
from headrace.findings import Finding
from headrace.server.listen import chosen_listeners
from headrace.server.tls.context import ServerTls
from headrace.storage.permissions import exposure


@dataclass
class _Warnings:
    """A journal that collects warnings and errors as faults of a check. Ignored settings are no faults."""

    check: str
    found: list[Finding]

    def info(self, event: str, **fields: object) -> None:
        """Ignore events that are no warnings."""

    def warning(self, event: str, **fields: object) -> None:
        """Add a fault to the findings, except for `config_ignored`, which needs no action."""
        remedy = fields.pop("remedy", None)
        said = ", ".join(f"{name} {value}" for name, value in fields.items())
        text = f"{event.replace('_', ' ')} ({said})"
        if event == "config_ignored":
            return
        self.found.append(Finding(self.check, "fault", text, str(remedy) if remedy else None))

    def error(self, event: str, **fields: object) -> None:
        """Add an error to the findings."""
        self.warning(event, **fields)


def examine(
    config_file: Path | None, given: Mapping[str, str], data: Sequence[Path]
) -> Iterator[Finding]:
    """Check the configuration that `headrace serve` would start with.

    Args:
        config_file: The file of settings.
        given: Further settings, which override the file.
        data: The data directories; empty for the directories of `log.dirs`.
    """
    noted: list[Finding] = []
    journal = _Warnings("settings", noted)
    try:
        values = broker_settings(config_file, given, journal)
        log_dirs = values.pop("log.dirs", values.pop("log.dir", ""))
        directories = data or [Path(each.strip()) for each in log_dirs.split(",") if each.strip()]
        config = parse_broker_config(values)
        listeners = chosen_listeners((), config, insecure=False)
    except ConfigError as error:
        yield Finding("settings", "fault", str(error), "change the named setting")
        return
    yield from noted or [Finding("settings", "ok", f"listeners {', '.join(map(str, listeners))}")]
    for directory in directories:
        yield _directory(directory)
    for listener in listeners:
        if listener.protocol.encrypted:
            yield from _certificates(listener, config)


def _directory(path: Path) -> Finding:
    check = f"data {path}"
    if not path.exists():
        return Finding(
            check,
            "absent",
            "it does not exist yet; the broker will create it for its own user only",
        )
    try:
        remedy = exposure(path)
    except OSError as error:
        return Finding(
            check, "fault", f"{error.strerror}", "check the permissions of its parent directories"
        )
    if remedy:
        return Finding(check, "fault", "other accounts can read or change its files", remedy)
    return Finding(check, "ok", "closed to other accounts")


def _certificates(listener: Listener, config: BrokerConfig) -> Iterator[Finding]:
    check = f"certificates of {listener.name}"
    noted: list[Finding] = []
    own = config.for_listener(listener.name)
    try:
        ServerTls(listener.name, own, _Warnings(check, noted))
    except ConfigError as error:
        yield Finding(check, "fault", str(error), "name certificate files that the broker can use")
        return
    lists = own.headrace_ssl_crl_location or "none"
    asked = f"client certificates: {own.ssl_client_auth}; revocation lists: {lists}"
    yield from noted or [Finding(check, "ok", asked)]
