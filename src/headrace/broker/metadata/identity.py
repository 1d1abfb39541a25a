"""The identity of the cluster and the registration of the broker, as the metadata store keeps them."""

from __future__ import annotations

import base64

from headrace.broker.metadata.metadata_writer import MetadataWriter, replacement
from headrace.core.cluster.image import MetadataImage
from headrace.core.cluster.records import (
    CLUSTER_ID_KEY,
    LIVE_BROKERS,
    REGISTRATIONS,
    ClusterIdRecord,
    LiveRecord,
    RegistrationRecord,
    decode,
    encode,
)
from headrace.errors import ConfigError
from headrace.ports import Entropy, Put, check_of


def load_cluster_id(metadata: MetadataWriter, entropy: Entropy) -> str:
    """Return the id of the cluster. The first broker that starts creates it."""
    if metadata.image.get(CLUSTER_ID_KEY) is None:
        cluster_id = base64.urlsafe_b64encode(entropy.uuid()).rstrip(b"=").decode()
        created = replacement(CLUSTER_ID_KEY, None, encode(ClusterIdRecord(cluster_id)))
        # Another broker may be faster.
        metadata.merge_and_wait(
            lambda: created if metadata.image.get(CLUSTER_ID_KEY) is None else None
        )
    entry = metadata.image.get(CLUSTER_ID_KEY)
    assert entry is not None, "the entry is never deleted"
    return decode(entry, ClusterIdRecord).cluster_id


def refuse_other_incarnation(broker_id: int, incarnation: str, image: MetadataImage) -> None:
    """Refuse to start beside a live broker that has the same broker id and another data directory.

    Args:
        broker_id: The id of the broker.
        incarnation: The id of its first log directory; "" if the directory was never used.
        image: The entries of the metadata store.

    Raises:
        ConfigError: Such a broker is live.
        StorageError: Its entry cannot be read.
    """
    entry = image.get(f"{LIVE_BROKERS}{broker_id}")
    if entry is None:
        return
    live = decode(entry, LiveRecord)
    if live.incarnation != incarnation:
        addresses = ", ".join(f"{host}:{port}" for host, port in live.endpoints.values())
        where = f", at {addresses}" if addresses else ""
        raise ConfigError(
            f"broker {broker_id} runs already, with another data directory{where}: two brokers have one broker.id. "
            "Give this broker another broker.id. If you have replaced the data directory, wait until the session of "
            "the earlier process has expired."
        )


def register(metadata: MetadataWriter, broker_id: int) -> int:
    """Register this start of a broker without a cluster, and return the broker epoch. Every start has the next one.

    The registration begins another leader epoch of each partition that the broker leads. By the leader epoch a client
    detects that a crash has lost records which the client had read (KIP-320).

    Args:
        metadata: The metadata store.
        broker_id: The id of the broker.
    """
    key = f"{REGISTRATIONS}{broker_id}"
    entry = metadata.image.get(key)
    broker_epoch = 0 if entry is None else decode(entry, RegistrationRecord).broker_epoch + 1
    put = Put(key, encode(RegistrationRecord(broker_epoch)))
    metadata.commit_and_wait([check_of(key, entry)], [put])
    return broker_epoch
