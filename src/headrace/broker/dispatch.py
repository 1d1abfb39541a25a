"""The table of handlers by API version: the registry of `handlers/`, the version check, and the audit log."""

from __future__ import annotations

from typing import Any, Final

from headrace.broker.apis import Api
from headrace.broker.audited import audited
from headrace.broker.context import CloseConnection
from headrace.broker.handler import Handler
from headrace.broker.handlers import REGISTRY


class _Handlers(dict[tuple[int, int], Handler[Any, Any]]):
    """The handlers by API key and version. A lookup with `[]` of another version closes the connection."""

    def __missing__(self, api_version: tuple[int, int]) -> Handler[Any, Any]:
        key, version = api_version
        raise CloseConnection(f"API {key} version {version} is not supported")


APIS: Final[tuple[Api, ...]] = tuple(
    Api(module.API_KEY, module.VERSIONS, getattr(module, "SERVED", module.VERSIONS))
    for module in REGISTRY
)
"""The APIs that the broker serves, in the order of their keys."""

HANDLERS: Final = _Handlers(
    ((api.key, version), audited(api.key, module.handle))
    for api, module in zip(APIS, REGISTRY, strict=True)
    for version in range(api.served.min, api.served.max + 1)
)
"""The handlers, each with what it writes to the audit log."""
