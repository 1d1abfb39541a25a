"""Begins sessions: connects, and checks the layout of the znodes or creates it. Errors say what an operator can do."""

from __future__ import annotations

import asyncio
import contextlib
import socket

from kazoo.exceptions import (
    ConnectionLoss,
    KazooException,
    NoAuthError,
    SessionClosedRequireSaslError,
)

from headrace.errors import ConfigError
from headrace.metadata_stores.zookeeper import layout
from headrace.metadata_stores.zookeeper.committer import begin
from headrace.metadata_stores.zookeeper.layout import UnreadableZnodeError
from headrace.metadata_stores.zookeeper.link import Link
from headrace.metadata_stores.zookeeper.settings import ZooKeeperSettings
from headrace.ports import Unavailable

_PROBE_TIMEOUT_S = 1.0


async def open_session(link: Link, settings: ZooKeeperSettings) -> None:
    """Wait for the beginning of a session, and prepare the znodes.

    Raises:
        ConfigError: ZooKeeper refuses the credentials, the chroot does not exist, or a znode cannot be used.
        Unavailable: No server responds in time.
    """
    deadline = settings.connection_timeout_ms / 1000
    try:
        async with asyncio.timeout(deadline):
            while True:
                await link.connected.wait()
                if link.state == "lost":
                    raise ConfigError(
                        f"ZooKeeper at {settings.connect} refuses the session: check the credentials"
                    )
                try:
                    await _prepare(link, settings)
                except ConnectionLoss:  # the next server may respond
                    await asyncio.sleep(settings.attempt_timeout_s / 10)
                else:
                    return
    except TimeoutError:
        why = await asyncio.to_thread(_diagnosis, settings)
        if link.client.tls_error:
            why += f"; TLS: {link.client.tls_error}"
        raise Unavailable(
            f"no ZooKeeper at {settings.connect} has begun a session within {deadline:g} s: {why}"
        ) from None


async def _prepare(link: Link, settings: ZooKeeperSettings) -> None:
    try:
        await link.sync()
        await _find_chroot(link, settings)
        await _find_layout(link)
        await begin(link)
    except ConnectionLoss:
        raise
    except NoAuthError:
        raise ConfigError(
            f"ZooKeeper at {settings.connect} denies access to {settings.chroot}{layout.ROOT}: "
            "use the credentials of the brokers that have created this znode"
        ) from None
    except SessionClosedRequireSaslError:
        raise ConfigError(
            f"ZooKeeper at {settings.connect} demands SASL: check the credentials"
        ) from None
    except KazooException as error:
        if link.state == "lost":
            raise ConnectionLoss from None
        raise Unavailable(f"ZooKeeper at {settings.connect}: {error or repr(error)}") from None
    except UnreadableZnodeError as error:
        raise Unavailable(f"ZooKeeper at {settings.connect}: {error}") from None


async def _find_chroot(link: Link, settings: ZooKeeperSettings) -> None:
    if not settings.chroot or await link.exists("/") is not None:
        return
    if not settings.creates_chroot:
        raise ConfigError(
            f"ZooKeeper at {settings.connect} has no znode {settings.chroot}: "
            "check the chroot at the end of zookeeper.connect"
        )
    chroot, link.client.chroot = link.client.chroot, ""
    try:
        path = ""
        for part in settings.chroot.split("/")[1:]:
            path += f"/{part}"
            if await link.exists(path) is None:
                await link.create(path)
    finally:
        link.client.chroot = chroot


async def _find_layout(link: Link) -> None:
    """Check the version of the layout, and create what is missing."""
    found = await link.get(layout.ROOT)
    if found is None:
        await link.create(layout.ROOT, layout.root_data())
        found = await link.get(layout.ROOT)
    path = link.path(layout.ROOT)
    try:
        version = layout.root_format(b"" if found is None else found[0])
    except UnreadableZnodeError as error:
        raise UnreadableZnodeError(f"the znode {path} is not of Headrace: {error}") from error
    if version != layout.FORMAT:
        raise UnreadableZnodeError(
            f"the znode {path} was written in format {version}, this version reads {layout.FORMAT}: "
            "use the version of Headrace that wrote it, or a newer one"
        )
    await link.create(layout.ENTRIES)
    await link.create(layout.SESSIONS)
    await link.create(layout.CHANGES, layout.log_data(1))
    log = await link.get(layout.CHANGES)
    generation = layout.generation_of(b"" if log is None else log[0])
    await link.create(layout.generation_path(generation))


def _diagnosis(settings: ZooKeeperSettings) -> str:
    """Return what each server says if it is asked for its state, without a session."""
    return "; ".join(f"{host}:{port} {_probe(host, port)}" for host, port in settings.addresses)


def _probe(host: str, port: int) -> str:
    try:
        with socket.create_connection((host, port), _PROBE_TIMEOUT_S) as connection:
            connection.settimeout(_PROBE_TIMEOUT_S)
            connection.sendall(b"srvr")
            answer = b""
            with contextlib.suppress(TimeoutError):
                while chunk := connection.recv(4096):
                    answer += chunk
    except OSError as error:
        return f"cannot be reached ({error})"
    if b"Mode: read-only" in answer:
        return "is read-only, because it has lost the other servers of its ensemble"
    if b"not currently serving" in answer:
        return "does not serve, because most servers of its ensemble are away"
    if b"Mode: " in answer:
        return "serves, but not this client"
    return "accepts connections, but does not answer like a ZooKeeper"
