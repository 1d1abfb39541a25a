"""The supervisor of `headrace serve --brokers N`: it holds the metadata store, and runs the broker processes."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from headrace.config.listeners import parse_protocol_map
from headrace.core.meta_properties import META_FILE
from headrace.errors import ConfigError, StorageError
from headrace.metadata_stores.remote.server import StoreServer
from headrace.metadata_stores.sqlite import SqliteMetadataStore
from headrace.ports import Journal
from headrace.server.data_directory import METADATA_FILE, broker_directories
from headrace.server.limits import HANDOVER_TIMEOUT_S
from headrace.server.log import LoggingJournal
from headrace.server.reports import EXIT_FAILED, EXIT_OK, print_ready
from headrace.server.supervisor.broker_process import BrokerProcess
from headrace.server.supervisor.settings import MemberSettings
from headrace.storage.permissions import make_private_directory

_STOP_S: Final = HANDOVER_TIMEOUT_S + 15
"""The longest wait for the end of the broker processes, in seconds."""


def supervise(brokers: int, settings: MemberSettings) -> int:
    """Run the brokers until SIGTERM or SIGINT, and return the exit code.

    Args:
        brokers: The number of brokers.
        settings: The settings that the brokers have in common. Without data directories the data are in a temporary
            directory, which is deleted at the end.

    Raises:
        ConfigError: The data directory has more brokers, the settings name an id, or there are not enough ports.
        StorageError: The data directory is in use, or has the data of a single broker.
    """
    for name in ("broker.id", "node.id"):
        if name in settings.values:
            raise ConfigError(
                f"{name} is for one broker: with --brokers the brokers have the ids 1 to {brokers}"
            )
    if settings.values.get("zookeeper.connect"):
        raise ConfigError(
            "--brokers has a metadata store of its own: leave out zookeeper.connect, or --brokers"
        )
    with contextlib.ExitStack() as stack:
        if not settings.data:
            temporary = stack.enter_context(tempfile.TemporaryDirectory(prefix="headrace-"))
            settings = replace(settings, data=[temporary])
        store = stack.enter_context(contextlib.closing(_open_store(settings.data, brokers)))
        return asyncio.run(_Supervisor(brokers, settings, store).main())


def _open_store(data: Sequence[str], brokers: int) -> SqliteMetadataStore:
    first = Path(data[0])
    _check(first, brokers)
    try:
        for directory in data:
            make_private_directory(Path(directory))
        return SqliteMetadataStore(first / METADATA_FILE)
    except OSError as error:
        raise StorageError(f"cannot use the data directory {first}: {error}") from error


def _check(path: Path, brokers: int) -> None:
    if (path / META_FILE).exists():
        raise StorageError(
            f"{path} has the data of a single broker: start it without --brokers, or name another directory"
        )
    most = max(broker_directories(path), default=0)
    if most > brokers:
        raise ConfigError(
            f"{path} has data of broker {most}: start it with --brokers {most} or more, or its partitions are offline"
        )


class _Supervisor:
    """One run of a supervisor on its event loop."""

    def __init__(self, brokers: int, settings: MemberSettings, store: SqliteMetadataStore) -> None:
        self._settings = settings
        self._of_brokers = [settings.of_broker(number + 1) for number in range(brokers)]
        self._store = store
        self._journal: Journal = LoggingJournal()
        self._brokers: list[BrokerProcess] = []
        self._stop = asyncio.Event()
        self._signals = 0
        self._is_announced = False

    async def main(self) -> int:
        """Run the brokers until a signal, or until one of them cannot start; return the exit code."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._signalled, number)
        if self._has_tls():
            loop.add_signal_handler(signal.SIGHUP, self._forward, signal.SIGHUP)
        server = StoreServer(self._store)
        self._brokers = [
            BrokerProcess(number, each, server, self._journal, self._ready)
            for number, each in enumerate(self._of_brokers, start=1)
        ]
        runs = [asyncio.create_task(broker.run()) for broker in self._brokers]
        stopping = asyncio.create_task(self._stop.wait())
        await asyncio.wait([stopping, *runs], return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        refused = [run.result() for run in runs if run.done()]
        await self._end(runs)
        server.close()
        code = _exit_code(refused, [run.result() for run in runs])
        self._journal.info("server_stopped", clean=code == EXIT_OK)
        return code

    def _has_tls(self) -> bool:
        """Return whether there are certificates, which SIGHUP makes the brokers read again."""
        names = parse_protocol_map(self._settings.values.get("listener.security.protocol.map", ""))
        return any(names[text.partition("://")[0]].encrypted for text in self._settings.listeners)

    async def _end(self, runs: Sequence[asyncio.Task[int]]) -> None:
        for broker in self._brokers:
            broker.stop()
        _, running = await asyncio.wait(runs, timeout=_STOP_S)
        if running:
            self._forward(signal.SIGKILL)
            await asyncio.wait(running)

    def _ready(self) -> None:
        """Print the ready line when all brokers are ready for the first time."""
        if not self._is_announced and all(broker.was_ready for broker in self._brokers):
            self._is_announced = True
            addresses = (broker.listeners[0].rpartition("://")[2] for broker in self._brokers)
            print_ready(
                f"ready kafka={','.join(addresses)} data={','.join(self._settings.data)} pid={os.getpid()} "
                f"cluster={self._brokers[0].cluster_id} brokers={len(self._brokers)}"
            )

    def _signalled(self, number: signal.Signals) -> None:
        self._signals += 1
        name = signal.Signals(number).name
        if self._signals == 1:
            self._journal.info("server_stopping", signal=name)
            self._stop.set()
        else:
            self._journal.warning("server_killed", signal=name)
            self._forward(signal.SIGKILL)

    def _forward(self, number: signal.Signals) -> None:
        for broker in self._brokers:
            broker.signal(number)


def _exit_code(refused: Sequence[int], ended: Sequence[int]) -> int:
    """Return the exit code of the supervisor.

    Args:
        refused: The exit codes of brokers that could not start.
        ended: The exit codes of all brokers.
    """
    if any(refused):
        return next((code for code in refused if code > 0), EXIT_FAILED)
    return EXIT_FAILED if any(ended) else EXIT_OK
