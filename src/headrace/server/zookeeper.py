"""The membership of a broker in a cluster that ZooKeeper coordinates (`headrace serve --zookeeper`)."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

from headrace.config.broker import BrokerConfig
from headrace.config.listeners import Listener
from headrace.errors import ConfigError
from headrace.metadata_stores.zookeeper import (
    ZooKeeperSettings,
    ZooKeeperTls,
    open_zookeeper_store,
)
from headrace.server.membership import StoreContext

if TYPE_CHECKING:
    from headrace.metadata_stores.zookeeper.store import ZooKeeperMetadataStore
    from headrace.server.guard.broker_side import Guard

_UPKEEP_INTERVAL_S: Final = 300.0
"""The time between two removals of what the store needs no more, in seconds."""


class ZooKeeperMembership:
    """A cluster whose brokers share a metadata store on ZooKeeper."""

    def __init__(self, settings: ZooKeeperSettings) -> None:
        """Prepare the session that `open_store` begins."""
        self._settings = settings
        self.guard: Guard | None = None
        """The guard of this process; None for none."""

    def open_store(self, context: StoreContext) -> ZooKeeperMetadataStore:
        """Begin a session with ZooKeeper; see `headrace.server.membership.Membership`."""
        loop, guard = context.loop, self.guard

        def arrived() -> None:
            context.arrived()
            if guard is not None:  # the session may be another one
                guard.report(self._settings, store.session_key)

        store = open_zookeeper_store(
            self._settings,
            clock=context.clock,
            journal=context.journal,
            wake=partial(loop.call_soon_threadsafe, arrived),
        )
        if guard is not None:
            guard.report(self._settings, store.session_key)
            guard.watch(loop, context.journal)
        loop.call_later(_UPKEEP_INTERVAL_S, _upkeep, loop, store)
        return store

    def announce(self, _listeners: Sequence[Listener], _cluster_id: str) -> bool:
        """Let the process print its ready line."""
        return False


def _upkeep(loop: asyncio.AbstractEventLoop, store: ZooKeeperMetadataStore) -> None:
    store.upkeep()
    loop.call_later(_UPKEEP_INTERVAL_S, _upkeep, loop, store)


def zookeeper_membership(
    config: BrokerConfig, given: Mapping[str, str]
) -> ZooKeeperMembership | None:
    """Return the membership of a broker with `zookeeper.connect`; None for a broker by itself.

    Args:
        config: The configuration of the broker.
        given: The settings that have no default value, by name.

    Raises:
        ConfigError: The broker has no id, or a setting of ZooKeeper is malformed.
    """
    if not config.zookeeper_connect:
        return None
    if not {"broker.id", "node.id"} & given.keys():
        raise ConfigError(
            f"zookeeper.connect={config.zookeeper_connect} needs broker.id (--broker-id): each broker of the cluster "
            "has an id of its own"
        )
    tls, user = None, config.headrace_zookeeper_digest_user
    if config.zookeeper_ssl_client_enable:
        keystore = config.zookeeper_ssl_keystore_location or None
        tls = ZooKeeperTls(
            ca_file=config.zookeeper_ssl_truststore_location or None,
            certificate_file=keystore,
            key_file=keystore,
            key_password=config.zookeeper_ssl_keystore_password or None,
            verifies_host_name=bool(config.zookeeper_ssl_endpoint_identification_algorithm),
        )
    return ZooKeeperMembership(
        ZooKeeperSettings(
            connect=config.zookeeper_connect,
            session_timeout_ms=config.zookeeper_session_timeout_ms,
            connection_timeout_ms=config.zookeeper_connection_timeout_ms,
            set_acl=config.zookeeper_set_acl,
            digest=f"{user}:{config.headrace_zookeeper_digest_password}" if user else None,
            tls=tls,
        )
    )
