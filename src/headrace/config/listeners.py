"""The listeners of a broker: by name, each with an address and a security protocol."""

from __future__ import annotations

from enum import StrEnum


class SecurityProtocol(StrEnum):
    """How a connection is protected, by Kafka's names."""

    PLAINTEXT = "PLAINTEXT"
    SSL = "SSL"
    SASL_PLAINTEXT = "SASL_PLAINTEXT"
    SASL_SSL = "SASL_SSL"

    @property
    def encrypted(self) -> bool:
        """Whether TLS lies below the Kafka protocol."""
        return self in {SecurityProtocol.SSL, SecurityProtocol.SASL_SSL}

    @property
    def sasl(self) -> bool:
        """Whether a client has to authenticate before anything else."""
        return self in {SecurityProtocol.SASL_PLAINTEXT, SecurityProtocol.SASL_SSL}
