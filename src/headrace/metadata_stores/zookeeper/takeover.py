"""Ends the ZooKeeper session of another process, for a parent process that has seen its broker die.

ZooKeeper would end the session only after its time-out. A process that knows the password of a session may continue the
session on a connection of its own, and close it. This module does not need kazoo, so the parent process stays small.
"""

from __future__ import annotations

import socket
import ssl
import struct
from dataclasses import dataclass, field
from typing import Final

from headrace.metadata_stores.zookeeper.settings import ZooKeeperSettings
from headrace.metadata_stores.zookeeper.tls import tls_context

_CONNECT: Final = struct.Struct(">iqiqi")
"""Protocol version, last transaction, time-out in milliseconds, session id, length of the password."""
_CONNECTED: Final = struct.Struct(">iiq")
"""Protocol version, time-out in milliseconds, session id. A time-out of 0 means that the session has ended."""
_CLOSE: Final = struct.Struct(">ii")
_CLOSE_SESSION: Final = -11
_LENGTH: Final = struct.Struct(">i")
_RESPONSE_LIMIT: Final = 4096


@dataclass(frozen=True, slots=True)
class SessionKey:
    """A ZooKeeper session, and what allows a process to continue it.

    Attributes:
        number: The id that ZooKeeper has given to the session.
        password: The password of the session.
    """

    number: int
    password: bytes = field(repr=False)


def end_session(settings: ZooKeeperSettings, key: SessionKey) -> bool:
    """End a session, and delete its ephemeral znodes. Tries each server once, a tenth of the session each.

    Returns:
        Whether the session has ended, now or before, or the password is wrong. False if no server has responded: then
        the session expires by itself.

    Raises:
        ConfigError: A TLS file cannot be read.
    """
    tls = None if settings.tls is None else tls_context(settings.tls)
    for host, port in settings.addresses:
        try:
            if _end_at(host, port, settings, key, tls):
                return True
        except OSError:  # the next server may respond
            continue
    return False


def _end_at(
    host: str, port: int, settings: ZooKeeperSettings, key: SessionKey, tls: ssl.SSLContext | None
) -> bool:
    with socket.create_connection((host, port), settings.attempt_timeout_s) as plain:
        connection = plain if tls is None else tls.wrap_socket(plain, server_hostname=host)
        with connection:
            connect = _CONNECT.pack(
                0, 0, settings.session_timeout_ms, key.number, len(key.password)
            )
            _send(connection, connect + key.password + b"\0")
            _, timeout_ms, number = _CONNECTED.unpack_from(_receive(connection))
            if timeout_ms <= 0:
                return True
            if number != key.number:
                return False
            _send(connection, _CLOSE.pack(1, _CLOSE_SESSION))
            _receive(connection)
            return True


def _send(connection: socket.socket, message: bytes) -> None:
    connection.sendall(_LENGTH.pack(len(message)) + message)


def _receive(connection: socket.socket) -> bytes:
    (length,) = _LENGTH.unpack(_read(connection, _LENGTH.size))
    if not _CLOSE.size <= length <= _RESPONSE_LIMIT:
        raise OSError(f"a response of {length} bytes is not of ZooKeeper")
    return _read(connection, length)


def _read(connection: socket.socket, length: int) -> bytes:
    data = b""
    while len(data) < length:
        chunk = connection.recv(length - len(data))
        if not chunk:
            raise ConnectionResetError("the server has closed the connection")
        data += chunk
    return data
