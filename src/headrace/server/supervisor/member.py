"""The process of one broker that a supervisor has started: `python -m headrace.server.supervisor.member FD`.

FD is a connected socket. The supervisor sends the settings of the broker over it, and serves the metadata store there.
No other process can connect, and the broker ends with the supervisor, because the connection ends.
"""

from __future__ import annotations

import socket
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from headrace.config.broker import parse_broker_config
from headrace.config.listeners import Listener
from headrace.errors import ConfigError, HeadraceError
from headrace.metadata_stores.remote.client import RemoteMetadataStore, read_settings
from headrace.server.listen import chosen_listeners
from headrace.server.log import configure_logging
from headrace.server.membership import StoreContext
from headrace.server.process import ServeOptions, run
from headrace.server.reports import EXIT_FAILED, EXIT_USAGE
from headrace.server.supervisor.settings import MemberSettings


class SupervisedMembership:
    """The cluster of a supervisor."""

    def __init__(self, connection: socket.socket) -> None:
        """Use a socket that is connected with the supervisor."""
        self._connection = connection
        self._store: RemoteMetadataStore

    def open_store(self, context: StoreContext) -> RemoteMetadataStore:
        """Begin a session; see `headrace.server.membership.Membership`."""
        self._store = store = RemoteMetadataStore(self._connection, context.clock)
        store.on_lost = context.lost
        store.serve_on(context.loop, context.arrived)
        return store

    def announce(self, listeners: Sequence[Listener], cluster_id: str) -> bool:
        """Send the addresses to the supervisor."""
        self._store.send(("ready", 0, list(map(str, listeners)), cluster_id))
        return True


def main() -> int:
    """Run the broker until SIGTERM, and return the exit code."""
    connection = socket.socket(fileno=int(sys.argv[1]))
    try:
        settings = MemberSettings(**read_settings(connection))
        configure_logging(settings.log_level, settings.log_format)
        config = parse_broker_config(settings.values)
        listeners = chosen_listeners(settings.listeners, config, insecure=settings.insecure)
        options = ServeOptions(
            listeners=listeners,
            data=[Path(directory) for directory in settings.data],
            config=replace(config, listeners=",".join(map(str, listeners))),
            loop=settings.loop,
            membership=SupervisedMembership(connection),
        )
        return run(options)
    except HeadraceError as error:
        sys.stderr.write(f"headrace: {error}\n")
        return EXIT_USAGE if isinstance(error, ConfigError) else EXIT_FAILED


if __name__ == "__main__":
    sys.exit(main())
