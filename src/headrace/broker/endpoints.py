"""The address for clients: the configured address of their listener, or the address to which they connected."""

from __future__ import annotations

from typing import Final

from headrace.broker.context import Endpoint, RequestContext
from headrace.config.listeners import parse_advertised

_MAPPED_IPV4: Final = "::ffff:"


class Endpoints:
    """The advertised address of each listener."""

    __slots__ = ("_advertised",)

    def __init__(self, advertised_listeners: str) -> None:
        """Parse `advertised.listeners`.

        Raises:
            ConfigError: The setting is malformed.
        """
        self._advertised = {
            name: Endpoint(*address)
            for name, address in parse_advertised(advertised_listeners).items()
        }

    def endpoint_for(self, context: RequestContext) -> Endpoint:
        """Return the address that the broker advertises to a client."""
        advertised = self._advertised.get(context.session.listener)
        return advertised or adaptive_endpoint(context.listener_host, context.listener_port)


def adaptive_endpoint(listener_host: str, listener_port: int) -> Endpoint:
    """Return the local address of an accepted socket as an endpoint.

    A dual-stack listener reports IPv4 clients as mapped IPv6 addresses, which not every client can connect to.
    """
    if listener_host.lower().startswith(_MAPPED_IPV4) and "." in listener_host:
        listener_host = listener_host[len(_MAPPED_IPV4) :]
    return Endpoint(listener_host, listener_port)
