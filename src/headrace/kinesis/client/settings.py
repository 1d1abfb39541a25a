"""Where AWS is and who asks: settings, and clients made of them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from headrace.errors import ConfigError


class AwsClient(Protocol):
    """A client of aiobotocore, or whatever has the operations that are called: each takes keywords, and is awaited."""

    def __getattr__(self, operation: str) -> Callable[..., Awaitable[Any]]:
        """Return an operation by its name, as `get_records`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AwsSettings:
    """How to reach AWS. What is not given comes from where every AWS program finds it: environment, files, roles.

    A role is assumed by a profile that says so in `~/.aws/config` (`role_arn`, `source_profile`).

    Attributes:
        region: As `eu-central-1`; from `AWS_REGION`, `AWS_DEFAULT_REGION` or the profile if not given.
        endpoint_url: Another server than AWS's, as `http://localhost:4567`; one server may serve all services.
        profile: A name in `~/.aws/config`.
        access_key_id: A key; only with `secret_access_key`.
        secret_access_key: Its secret.
        session_token: What temporary keys have besides.
        max_pool_connections: Connections at the same time; None: as many as are needed, at most one for each shard that
            is read and a few besides. With fewer than there are shards, fan-out of some would wait for ever.
        connect_timeout_ms: How long a connection may take.
        read_timeout_ms: How long an answer may take.
        clients: Clients that exist already, by service; they are used as they are, and not closed.
    """

    region: str | None = None
    endpoint_url: str | None = None
    profile: str | None = None
    access_key_id: str | None = None
    secret_access_key: str | None = field(default=None, repr=False)
    session_token: str | None = field(default=None, repr=False)
    max_pool_connections: int | None = None
    connect_timeout_ms: int = 5_000
    read_timeout_ms: int = 20_000
    clients: Mapping[str, AwsClient] = field(default_factory=dict, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Refuse what cannot work.

        Raises:
            ConfigError: It says which setting, and why.
        """
        if (self.access_key_id is None) != (self.secret_access_key is None):
            raise ConfigError(
                "access_key_id and secret_access_key go together: one of them is missing"
            )
        if self.session_token is not None and self.access_key_id is None:
            raise ConfigError(
                "session_token belongs to an access_key_id and a secret_access_key: give all three"
            )
        if self.endpoint_url is not None and not self.endpoint_url.startswith(
            ("http://", "https://")
        ):
            raise ConfigError(
                f"endpoint_url={self.endpoint_url!r}: it begins with http:// or https://"
            )
        for name in ("max_pool_connections", "connect_timeout_ms", "read_timeout_ms"):
            value = getattr(self, name)
            if value is not None and value <= 0:
                raise ConfigError(f"{name}={value}: it is at least 1")
