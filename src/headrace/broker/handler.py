"""The interface of the modules in `handlers/`."""

from __future__ import annotations

from typing import Any, Protocol, TypeVar

from headrace.broker.context import RequestContext
from headrace.broker.services import Services
from headrace.broker.waiting.steps import Work
from headrace.deferred import Deferred
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.versions import VersionRange

Request_contra = TypeVar("Request_contra", contravariant=True)
Response_co = TypeVar("Response_co", covariant=True)


class Handler(Protocol[Request_contra, Response_co]):
    """The function that handles the requests of one API."""

    def __call__(
        self, services: Services, context: RequestContext, request: Request_contra, /
    ) -> Response_co | Deferred[Any] | Work[Any] | None:
        """Handle a request.

        Returns:
            The response, now or deferred; None if the request gets no response; or the work in steps that returns one
            of these.

        Raises:
            CloseConnection: The broker has to close the connection instead of sending a response.
        """


class ApiModule(Protocol):
    """A module in `handlers/`. It may also have `SERVED`: the versions that it handles, if that is not `VERSIONS`."""

    __name__: str

    @property
    def API_KEY(self) -> ApiKey:  # noqa: N802 - the name of the module's constant
        """The key of the API."""

    @property
    def VERSIONS(self) -> VersionRange:  # noqa: N802 - the name of the module's constant
        """The versions that ApiVersions reports."""

    @property
    def handle(self) -> Handler[Any, Any]:
        """The function that handles the requests. A test compares its annotation with the API's class of requests."""
