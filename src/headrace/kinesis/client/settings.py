"""The settings of AWS clients, and the interface of such clients."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from headrace.errors import ConfigError


class AwsClient(Protocol):
    """A client of aiobotocore, or any object with the same operations: each takes keyword arguments and is awaited."""

    def __getattr__(self, operation: str) -> Callable[..., Awaitable[Any]]:
        """Return an operation by its name, such as `get_records`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AwsSettings:
    """The access to AWS. Missing values come from the environment, AWS's configuration files and roles.

    To assume a role, use a profile in `~/.aws/config` with `role_arn` and `source_profile`.

    Attributes:
        region: The region, such as `eu-central-1`. None: `AWS_REGION`, `AWS_DEFAULT_REGION` or the profile's region.
        endpoint_url: The URL of a server that replaces AWS, such as `http://localhost:4567`. One server may serve all
            services.
        profile: The name of a profile in `~/.aws/config`.
        access_key_id: The id of an access key; only together with `secret_access_key`.
        secret_access_key: The secret of the access key.
        session_token: The session token of a temporary access key.
        max_pool_connections: The most connections at the same time. None: as many as needed, which is about one for
            each shard that is read. With fewer connections than shards, fan-out of some shards would wait for ever.
        connect_timeout_ms: The time limit of a connection attempt, in milliseconds.
        read_timeout_ms: The time limit of a response, in milliseconds.
        clients: Open clients by service, such as `kinesis`. Headrace uses them and does not close them.
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
        """Check the settings.

        Raises:
            ConfigError: A setting is not allowed, or one that belongs to it is missing.
        """
        if (self.access_key_id is None) != (self.secret_access_key is None):
            raise ConfigError("access_key_id and secret_access_key go together: set both, or none")
        if self.session_token is not None and self.access_key_id is None:
            raise ConfigError(
                "session_token belongs to an access_key_id and a secret_access_key: set all three"
            )
        if self.endpoint_url is not None and not self.endpoint_url.startswith(
            ("http://", "https://")
        ):
            raise ConfigError(
                f"endpoint_url={self.endpoint_url!r} is not allowed: a URL begins with http:// or https://"
            )
        for name in ("max_pool_connections", "connect_timeout_ms", "read_timeout_ms"):
            value = getattr(self, name)
            if value is not None and value <= 0:
                raise ConfigError(f"{name}={value} is not allowed: use 1 or more")
