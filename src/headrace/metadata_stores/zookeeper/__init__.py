"""The metadata store on ZooKeeper, which the brokers of a cluster share. It needs the extra `cluster` (kazoo)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from headrace.errors import ConfigError
from headrace.metadata_stores.zookeeper.settings import ZooKeeperSettings, ZooKeeperTls
from headrace.ports import Journal

if TYPE_CHECKING:
    from headrace.metadata_stores.zookeeper.store import ZooKeeperMetadataStore

__all__ = ["ZooKeeperSettings", "ZooKeeperTls", "open_zookeeper_store"]


def _nothing() -> None:
    pass


def open_zookeeper_store(
    settings: ZooKeeperSettings,
    *,
    clock: Callable[[], int],
    journal: Journal,
    wake: Callable[[], object] = _nothing,
) -> ZooKeeperMetadataStore:
    """Begin a session with ZooKeeper. Blocks until it has begun, or `connection_timeout_ms` is over.

    Args:
        settings: How to reach ZooKeeper.
        clock: Returns the time in milliseconds, in any thread. The lease of the session is in this time.
        journal: Receives log events, in the thread of the caller.
        wake: Called in another thread when something has arrived. It makes the thread of the caller call
            `run_pending` of the store soon.

    Raises:
        ConfigError: kazoo is not installed, ZooKeeper refuses the credentials, or the chroot is missing.
        StorageError: No server responds, or a newer version of Headrace has written the znodes.
    """
    try:
        import kazoo  # noqa: F401, PLC0415 - optional, and 40 ms that a single broker must not pay
    except ImportError as error:
        raise ConfigError(
            f"ZooKeeper needs the package kazoo ({error}): pip install 'headrace[cluster]'"
        ) from None
    from headrace.metadata_stores.zookeeper.store import ZooKeeperMetadataStore  # noqa: PLC0415 - needs kazoo

    return ZooKeeperMetadataStore(settings, clock=clock, journal=journal, wake=wake)
