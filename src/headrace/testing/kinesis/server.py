"""The HTTP server of the fakes. Clients of AWS reach it by their `endpoint_url`."""

from __future__ import annotations

import asyncio
import re
import uuid
from collections.abc import Mapping
from contextlib import suppress
from typing import Final

from aiohttp import web

from headrace.testing.kinesis import eventstream
from headrace.testing.kinesis.errors import AwsError
from headrace.testing.kinesis.fanout import FanOutSubscription
from headrace.testing.kinesis.faults import Reply
from headrace.testing.kinesis.machine import FakeKinesis
from headrace.testing.kinesis.service import AwsService

_LARGEST_REQUEST: Final = 32 << 20
_SHORTEST_WAIT_S: Final = 0.01
_REGION: Final = re.compile(r"Credential=[^/]*/\d+/([^/]+)/")


class Server:
    """Serves on 127.0.0.1, on the event loop that starts it."""

    def __init__(self, services: Mapping[str, AwsService], region: str | None, port: int) -> None:
        """Prepare a server; it listens after `start`.

        Args:
            services: The services, by the part of X-Amz-Target before the dot.
            region: The only region that has streams and tables; None: the region of each request.
            port: The port to listen on; 0 is a free port.
        """
        self._services = services
        self._region = region
        self._runner: web.AppRunner | None = None
        self.port = port

    async def start(self) -> None:
        """Start to listen for connections."""
        app = web.Application(client_max_size=_LARGEST_REQUEST)
        app.router.add_post("/", self._answer)
        self._runner = web.AppRunner(
            app, access_log=None, handler_cancellation=True, shutdown_timeout=0.1
        )
        await self._runner.setup()
        try:
            await web.TCPSite(self._runner, "127.0.0.1", self.port).start()
        except OSError:
            await self.stop()
            raise
        self.port = self._runner.addresses[0][1]

    async def stop(self) -> None:
        """Close the server and all connections."""
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
        if reply.subscription is not None:
            assert isinstance(service, FakeKinesis)
            return await self._push(request, service, reply.subscription)
        return _response(reply, content_type)

    async def _push(
        self, request: web.Request, kinesis: FakeKinesis, subscription: FanOutSubscription
    ) -> web.StreamResponse:
        response = web.StreamResponse(headers=_headers(eventstream.CONTENT_TYPE))
        await response.prepare(request)
        await response.write(eventstream.event("initial-response", b"{}"))
        loop = asyncio.get_running_loop()
        changed = asyncio.Event()
        with kinesis.watched(lambda: loop.call_soon_threadsafe(changed.set)):
            while True:
                changed.clear()
                push = kinesis.next_push(subscription)
                if push.frame:
                    await response.write(push.frame)
                if push.is_over:
                    break
                if not push.frame:
                    await _wait(changed, push.due_ms - kinesis.clock.now_ms())
        if push.is_lost and request.transport is not None:
            request.transport.abort()
        return response

    def _check(self, request: web.Request, service: AwsService | None, content_type: str) -> None:
        if "json" not in content_type:
            raise AwsError(
                "UnsupportedMediaType",
                f"the fake supports JSON only, not {content_type}: switch CBOR off in your client",
            )
        if service is None:
            raise AwsError(
                "UnknownOperationException",
                f"the fake has no operation {request.headers.get('X-Amz-Target')!r}",
            )
        signed = request.headers.get("Authorization")
        if signed is None:
            raise AwsError("MissingAuthenticationTokenException", "Missing Authentication Token")
        region = _REGION.search(signed)
        if self._region is not None and region is not None and region[1] != self._region:
            raise AwsError("ResourceNotFoundException", f"there is nothing in region {region[1]}")


async def _wait(changed: asyncio.Event, milliseconds: int) -> None:
    """Wait for an event, or until a time limit. The limit is real time: a test's clock may stand still."""
    with suppress(TimeoutError):
        await asyncio.wait_for(changed.wait(), max(_SHORTEST_WAIT_S, milliseconds / 1000))


def _headers(content_type: str) -> dict[str, str]:
    return {"x-amzn-RequestId": str(uuid.uuid4()), "Content-Type": content_type}


def _response(reply: Reply, content_type: str) -> web.Response:
    return web.Response(status=reply.status, body=reply.body, headers=_headers(content_type))
