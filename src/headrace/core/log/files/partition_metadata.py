"""`partition.metadata`: the id of the topic to which a partition's directory belongs, in Kafka's format."""

from __future__ import annotations

import base64
import binascii
from typing import Final

METADATA_FILE: Final = "partition.metadata"


def encode_topic_id(topic_id: bytes) -> bytes:
    """Return the content of the file for a topic id."""
    text = base64.urlsafe_b64encode(topic_id).rstrip(b"=").decode()
    return f"version: 0\ntopic_id: {text}\n".encode()


def owner_in(content: bytes | None) -> str:
    """Return the topic id in a file's content as hexadecimal digits, "" without one."""
    return (decode_topic_id(content) or b"").hex()


def decode_topic_id(content: bytes | None) -> bytes | None:
    """Return the topic id, None when the file is absent or damaged."""
    for line in (content or b"").splitlines():
        key, _, value = line.partition(b":")
        if key.strip() == b"topic_id":
            try:
                topic_id = base64.urlsafe_b64decode(value.strip() + b"==")
            except (binascii.Error, ValueError):
                return None
            return topic_id if len(topic_id) == 16 else None
    return None
