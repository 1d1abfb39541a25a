"""The identity of the cluster and the registration of the broker, as the metadata store keeps them."""

from __future__ import annotations

import base64

from headrace.broker.metadata.metadata_writer import MetadataWriter
from headrace.core.cluster.records import (
    CLUSTER_ID_KEY,
    REGISTRATIONS,
    ClusterIdRecord,
    RegistrationRecord,
    decode,
    encode,
)
from headrace.ports import Check, Entropy, Put


def load_cluster_id(metadata: MetadataWriter, entropy: Entropy) -> str:
    """Return the id of the cluster. The first start creates it."""
    entry = metadata.image.get(CLUSTER_ID_KEY)
    if entry is not None:
        return decode(entry, ClusterIdRecord).cluster_id
    cluster_id = base64.urlsafe_b64encode(entropy.uuid()).rstrip(b"=").decode()
    check = Check(CLUSTER_ID_KEY, "absent")
    put = Put(CLUSTER_ID_KEY, encode(ClusterIdRecord(cluster_id)))
    metadata.commit_at_start([check], [put])
    return cluster_id


def register(metadata: MetadataWriter, broker_id: int) -> int:
    """Register this start of the broker, and return the broker epoch. Every start has the next one.

    The registration begins another leader epoch of each partition that the broker leads. By the leader epoch a client
    detects that a crash has lost records which the client had read (KIP-320).
    """
    key = f"{REGISTRATIONS}{broker_id}"
    entry = metadata.image.get(key)
    broker_epoch = 0 if entry is None else decode(entry, RegistrationRecord).broker_epoch + 1
    check = Check(key, "absent" if entry is None else entry.version)
    put = Put(key, encode(RegistrationRecord(broker_epoch)))
    metadata.commit_at_start([check], [put])
    return broker_epoch
