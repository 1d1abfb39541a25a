"""The one look inside what clients say to each other: the topics of a consumer's subscription."""

from __future__ import annotations

from headrace.errors import HeadraceError
from headrace.protocol.messages.consumer_protocol import ConsumerProtocolSubscription


def subscribed_topics(metadata: bytes) -> frozenset[str] | None:
    """Return the topics of a ConsumerProtocolSubscription, or None if it cannot be read.

    Later versions only append fields, so every version is read as version 0.
    """
    try:
        subscription, _ = ConsumerProtocolSubscription.decode(memoryview(metadata), 2, 0)
    except (HeadraceError, ValueError, IndexError):
        return None
    return frozenset(subscription.topics)
