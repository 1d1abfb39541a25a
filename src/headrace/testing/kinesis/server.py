"""The fakes behind HTTP, as every client of AWS reaches them by its `endpoint_url`."""

from __future__ import annotations

import asyncio
import re
import uuid
from collections.abc import Mapping
from typing import Final

from aiohttp import web

from headrace.testing.kinesis.errors import AwsError
from headrace.testing.kinesis.faults import Reply
from headrace.testing.kinesis.service import Service

_LARGEST_REQUEST: Final = 32 << 20
_REGION: Final = re.compile(r"Credential=[^/]*/\d+/([^/]+)/")


class Server:
    """Answers on a free port of 127.0.0.1, on the loop that starts it."""

    def __init__(self, services: Mapping[str, Service], region: str | None) -> None:
        """Prepare to serve.

        Args:
            services: By the part of X-Amz-Target before the dot.
            region: The only region where there is anything; None: whichever a client signs for.
        """
        self._services = services
        self._region = region
        self._runner: web.AppRunner | None = None
        self.port = 0

    async def start(self) -> None:
        """Listen."""
        app = web.Application(client_max_size=_LARGEST_REQUEST)
        app.router.add_post("/", self._answer)
        self._runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0.1)  # fmt: skip
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self.port = self._runner.addresses[0][1]

    async def stop(self) -> None:
        """Close all connections."""
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        content_type = request.content_type
        target, _, operation = request.headers.get("X-Amz-Target", "").partition(".")
        service = self._services.get(target)
        try:
            self._check(request, service, content_type)
        except AwsError as error:
            return _response(Reply(error.status, error.body()), "application/x-amz-json-1.1")
        assert service is not None
        reply = service.handle(operation, await request.read())
        if reply.delay_s:
            await asyncio.sleep(reply.delay_s)
        if reply.is_lost:
            if request.transport is not None:
                request.transport.abort()
            return web.Response()
        return _response(reply, content_type)

    def _check(self, request: web.Request, service: Service | None, content_type: str) -> None:
        if "json" not in content_type:
            raise AwsError("UnsupportedMediaType", f"the fake speaks JSON only, not {content_type}: switch CBOR off in your client")  # fmt: skip
        if service is None:
            raise AwsError("UnknownOperationException", f"nothing here answers {request.headers.get('X-Amz-Target')!r}")  # fmt: skip
        signed = request.headers.get("Authorization")
        if signed is None:
            raise AwsError("MissingAuthenticationTokenException", "Missing Authentication Token")
        region = _REGION.search(signed)
        if self._region is not None and region is not None and region[1] != self._region:
            raise AwsError("ResourceNotFoundException", f"there is nothing in region {region[1]}")


def _response(reply: Reply, content_type: str) -> web.Response:
    headers = {"x-amzn-RequestId": str(uuid.uuid4()), "Content-Type": content_type}
    return web.Response(status=reply.status, body=reply.body, headers=headers)
