"""The options of a broker that say how it reaches ZooKeeper, under Kafka's names where Kafka has them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from headrace.config.options import OptionType, option
from headrace.config.security import BrokerSecurityConfig

_INT: Final = OptionType.INT


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerZooKeeperConfig(BrokerSecurityConfig):
    """The options of the metadata store on ZooKeeper."""

    headrace_zookeeper_digest_password: str = option(
        "", "The password of headrace.zookeeper.digest.user.", sensitive=True
    )
    headrace_zookeeper_digest_user: str = option(
        "",
        "The user as which the broker logs in to ZooKeeper, by its digest scheme. Empty: no login.",
    )
    zookeeper_connect: str = option(
        "",
        "The servers of ZooKeeper that has the metadata of the cluster: HOST:PORT[,HOST:PORT...][/CHROOT]. Empty: the "
        "broker is a cluster by itself, and keeps its metadata in the first data directory.",
    )
    zookeeper_connection_timeout_ms: int = option(
        18_000,
        "The time in which the session with ZooKeeper must begin when the broker starts.",
        type=_INT,
        minimum=1,
    )
    zookeeper_session_timeout_ms: int = option(
        9_000,
        "The time without a message of the broker after which ZooKeeper ends its session, so that other brokers lead "
        "its partitions. The servers of ZooKeeper can raise or lower it. Kafka's default is 18000.",
        type=_INT,
        minimum=1,
    )
    zookeeper_set_acl: bool = option(
        default=False,
        documentation="Whether only the credentials of the broker can read and change the znodes that it creates.",
    )
    zookeeper_ssl_client_enable: bool = option(
        default=False, documentation="Whether connections to ZooKeeper use TLS."
    )
    zookeeper_ssl_endpoint_identification_algorithm: str = option(
        "HTTPS",
        "Whether the certificate of a ZooKeeper server must have the name of its host: HTTPS, or empty for no check.",
        choices=("", "HTTPS"),
    )
    zookeeper_ssl_keystore_location: str = option(
        "", "A PEM file with the certificate of the broker for ZooKeeper, and its private key."
    )
    zookeeper_ssl_keystore_password: str = option(
        "", "The password of the private key in zookeeper.ssl.keystore.location.", sensitive=True
    )
    zookeeper_ssl_truststore_location: str = option(
        "",
        "A PEM file with the certificate authorities that sign the certificates of the ZooKeeper servers. Empty: those "
        "of the system.",
    )
