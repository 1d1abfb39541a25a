"""The settings of the metadata store on ZooKeeper, under the meaning that Kafka gives them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from headrace.errors import ConfigError

DEFAULT_PORT: Final = 2181
_SHARE_OF_A_CONNECTION: Final = 10
_LEAST_CONNECTION_TIMEOUT_MS: Final = 250


@dataclass(frozen=True, slots=True)
class ZooKeeperTls:
    """TLS between the broker and ZooKeeper.

    Attributes:
        ca_file: The certificates that the server's one is checked with; None for those of the system.
        certificate_file: The certificate of the broker; None for none.
        key_file: The private key of the broker's certificate; None for none.
        key_password: The password of the private key; None for none.
        verifies_host_name: Whether the server's certificate must have the name of the host.
    """

    ca_file: str | None = None
    certificate_file: str | None = None
    key_file: str | None = None
    key_password: str | None = field(default=None, repr=False)
    verifies_host_name: bool = True


@dataclass(frozen=True, slots=True)
class ZooKeeperSettings:
    """The servers of ZooKeeper, time-outs and credentials.

    Attributes:
        connect: The servers and the chroot, as in Kafka's `zookeeper.connect`: `HOST:PORT[,HOST:PORT...][/CHROOT]`.
        session_timeout_ms: The time without a message after which ZooKeeper ends the session, in milliseconds. The
            servers may choose another one.
        connection_timeout_ms: The time in which a session must begin, in milliseconds.
        set_acl: Whether only the authenticated user may read and change the znodes that this broker creates.
        creates_chroot: Whether a chroot that does not exist is created.
        digest: User and password of ZooKeeper's digest scheme, `USER:PASSWORD`; None for none.
        sasl_user: The user of SASL DIGEST-MD5; None for no SASL.
        sasl_password: The password of that user.
        tls: Certificates; None for connections without TLS.
    """

    connect: str
    session_timeout_ms: int = 9_000
    connection_timeout_ms: int = 18_000
    set_acl: bool = False
    creates_chroot: bool = True
    digest: str | None = field(default=None, repr=False)
    sasl_user: str | None = None
    sasl_password: str | None = field(default=None, repr=False)
    tls: ZooKeeperTls | None = None

    def __post_init__(self) -> None:
        self.addresses  # noqa: B018 - a malformed one raises here
        if self.digest is not None and ":" not in self.digest:
            raise ConfigError("the digest credentials of ZooKeeper have the form USER:PASSWORD")
        if (self.sasl_user is None) != (self.sasl_password is None):
            raise ConfigError("SASL with ZooKeeper needs both a user and a password")
        certificate = self.tls is not None and self.tls.certificate_file is not None
        if self.set_acl and self.digest is None and self.sasl_user is None and not certificate:
            raise ConfigError(
                "zookeeper.set.acl needs credentials: a digest, a SASL user, or a certificate"
            )

    @property
    def addresses(self) -> list[tuple[str, int]]:
        """The host and the port of each server.

        Raises:
            ConfigError: There is no server, or one is malformed.
        """
        found: list[tuple[str, int]] = []
        for each in self.connect.partition("/")[0].split(","):
            host, colon, port = each.strip().rpartition(":")
            if not colon or each.strip().endswith("]"):
                host, port = each.strip(), str(DEFAULT_PORT)
            if not host or not port.isdigit() or not 0 < int(port) < 65536:
                raise ConfigError(
                    f"zookeeper.connect={self.connect!r}: {each!r} is not HOST:PORT; "
                    "give HOST:PORT[,HOST:PORT...][/CHROOT]"
                )
            found.append((host.strip("[]"), int(port)))
        return found

    @property
    def chroot(self) -> str:
        """The path below which all znodes are; "" for the root of ZooKeeper."""
        path = "/".join(part for part in self.connect.partition("/")[2].split("/") if part)
        return f"/{path}" if path else ""

    @property
    def attempt_timeout_s(self) -> float:
        """The time after which the next server is tried, in seconds: a tenth of the session."""
        share = self.session_timeout_ms / _SHARE_OF_A_CONNECTION
        return max(share, _LEAST_CONNECTION_TIMEOUT_MS) / 1000
