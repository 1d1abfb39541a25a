"""One connection to a broker, without the socket: framing, correlation ids, versions and pending requests.

A driver owns one `BrokerConnection` for each socket. It writes the buffers of `take_output`, receives into
`get_buffer`, calls `bytes_received`, and takes outcomes from `take_completed`. Responses come in the order of the
requests, because a Kafka broker answers a connection in order. Anything else is a protocol error, and the connection
must be closed.

Requests may be sent before the versions of the broker are known: they wait until the handshake is done. The handshake
is ApiVersions in the newest version of the client. A broker that does not support it answers in version 0 with error 35
and its own range, and gets another request in the newest version of that range (KIP-511). Then the client logs in, if
it has to: the owner of the connection calls `authenticate`, once at the beginning and again before the session expires
(KIP-368). Requests wait during the login, as during the handshake.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Final, Generic, NamedTuple, TypeVar

from headrace import __version__
from headrace.clients.network.authentication import HANDSHAKE_VERSION, SaslLogin
from headrace.clients.network.versions import (
    CLIENT_MAX_VERSIONS,
    choose_version,
    leave_out_unknown,
    our_range,
    version_table,
)
from headrace.errors import ErrorCode, HeadraceError, InternalError, ProtocolError
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.codec import Message
from headrace.protocol.frame import (
    RequestHeader,
    decode_response,
    encode_request,
    response_class,
)
from headrace.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from headrace.protocol.messages.sasl_authenticate import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
)
from headrace.protocol.messages.sasl_handshake import SaslHandshakeResponse
from headrace.protocol.versions import VersionRange
from headrace.security.mechanisms import SaslClient
from headrace.types import Payload

K = TypeVar("K")

DEFAULT_MAX_FRAME_BYTES: Final = 128 << 20
HANDSHAKE_MAX_FRAME_BYTES: Final = 1 << 20
"""The largest response in bytes before the end of the handshake; a larger one is not in the Kafka protocol."""

_LENGTH_BYTES: Final = 4
_TLS_ALERT: Final = 0x15
"""The first byte of the response of a TLS server to a client without TLS."""
_CHUNK_BYTES: Final = 16 << 10
"""The size of the receive buffer between frames in bytes. Most responses are smaller, so one read gets several."""


class Completed(NamedTuple, Generic[K]):
    """The outcome of one request."""

    token: K
    outcome: Message | HeadraceError | None
    """The response or an error; None for a request without a response."""


class _InFlight(NamedTuple, Generic[K]):
    correlation_id: int
    response_type: type[Message]
    version: int
    token: K | None
    """The token of the request; None for requests of the connection itself."""


class BrokerConnection(Generic[K]):
    """The protocol state of one connection; `K` is the type of the tokens that identify requests."""

    def __init__(
        self,
        *,
        client_id: str,
        peer: str = "the broker",
        max_frame_bytes: int = DEFAULT_MAX_FRAME_BYTES,
        authenticates: bool = False,
        max_versions: Mapping[int, int] = CLIENT_MAX_VERSIONS,
    ) -> None:
        """Begin the handshake.

        Args:
            client_id: The name of the client in requests.
            peer: The broker's name in messages.
            max_frame_bytes: The largest response in bytes.
            authenticates: Whether `authenticate` must come before the first request.
            max_versions: The newest version of each API that may be used.
        """
        self.peer = peer
        self.versions: dict[int, VersionRange] | None = None
        """The API versions of the broker, by API key; None before the handshake."""
        self._extensions: Sequence[str] = ()
        """The extensions of Kafka's protocol that the broker supports."""
        self.ready = False
        """Whether the handshake is done."""
        self.logins = 0
        """The number of logins on this connection."""
        self.session_lifetime_ms = 0
        """Milliseconds for which the last login is valid; 0 is without limit."""
        self._authenticates = authenticates
        self._max_versions = max_versions
        self._exchange: SaslLogin | None = None
        """The login that is pending or running; None if there is none."""
        self._exchanging = False
        self._holding = True
        """Whether new requests wait for a handshake or a login."""
        self._client_id = client_id
        self._max_frame_bytes = max_frame_bytes
        self._correlation_id = 0
        self._in_flight: deque[_InFlight[K]] = deque()
        self._waiting: deque[tuple[Message, K, bool, int | None]] = deque()
        self._output: list[Payload] = []
        self._unconfirmed: list[K] = []
        """The tokens of requests without a response that may not be written to the socket yet."""
        self._completed: list[Completed[K]] = []
        self._chunk = bytearray(_CHUNK_BYTES)
        self._held = 0
        """The number of bytes at the start of the chunk that belong to an incomplete length."""
        self._frame: bytearray | None = None
        self._filled = 0
        self._handshake(CLIENT_MAX_VERSIONS[ApiKey.API_VERSIONS])

    @property
    def wants_credentials(self) -> bool:
        """Whether the connection waits for `authenticate`."""
        return not self.ready and self.versions is not None and self._exchange is None

    @property
    def logging_in(self) -> bool:
        """Whether a login is running."""
        return self._exchanging

    @property
    def answers(self) -> int:
        """The number of responses so far, including those to the connection's own requests."""
        return self._correlation_id - len(self._in_flight)

    @property
    def idle(self) -> bool:
        """Whether no request is pending."""
        return not (self._in_flight or self._waiting or self._unconfirmed)

    def send(
        self, request: Message, token: K, *, answered: bool = True, max_version: int | None = None
    ) -> None:
        """Queue a request; its outcome appears in `take_completed` under `token`.

        The newest version that both sides support is used. If there is none, the outcome is UNSUPPORTED_VERSION.

        Args:
            request: The request.
            token: Identifies the request among the outcomes.
            answered: Whether there is a response. False for Produce with acks=0, which is complete when it is written.
            max_version: The newest version that may be used. None is the newest of the client.
        """
        if self._holding:
            self._waiting.append((request, token, answered, max_version))
            return
        assert self.versions is not None, "requests are sent after the handshake only"
        api_key = request.API_KEY
        try:
            version = choose_version(
                api_key,
                our_range(request, max_version),
                self.versions.get(api_key),
                peer=self.peer,
                limits=self._max_versions,
            )
            leave_out_unknown(request, self._extensions)
            self._encode(request, version, token if answered else None, answered=answered)
        except Exception as error:  # noqa: BLE001 - it is the outcome of the request
            what = f"{type(request).__name__} cannot be sent to {self.peer}"
            self._completed.append(Completed(token, InternalError.of(error, what)))
            return
        if not answered:
            self._unconfirmed.append(token)

    def hold(self) -> None:
        """Make new requests wait until the end of the next login."""
        self._holding = True

    def authenticate(self, client: SaslClient) -> None:
        """Log in (again) when all earlier requests have responses; new requests wait meanwhile.

        Raises:
            AuthenticationError: The broker does not support the login; close the connection.
        """
        self._holding = True
        self._exchange = SaslLogin(client, self.peer)
        if not self._in_flight:
            self._begin_exchange()

    def written(self) -> None:
        """Note that all output so far has been written: requests without a response are complete."""
        self._completed += [Completed(token, None) for token in self._unconfirmed]
        self._unconfirmed.clear()

    def take_output(self) -> list[Payload]:
        """Return the buffers to write, in order, and remove them."""
        output, self._output = self._output, []
        return output

    def get_buffer(self) -> memoryview:
        """Return the buffer for the next received bytes; it is never empty.

        Every frame gets a buffer of its own, so that records can refer to it. Only the beginning of a large frame is
        copied there; the rest is received into it.
        """
        if self._frame is not None:
            return memoryview(self._frame)[self._filled :]
        return memoryview(self._chunk)[self._held :]

    def bytes_received(self, count: int) -> None:
        """Handle `count` bytes that were received into the buffer.

        Raises:
            ProtocolError: The broker violated the protocol; close the connection.
            AuthenticationError: The broker refused the login; close the connection.
        """
        frame = self._frame
        if frame is None:
            self._split(self._held + count)
            return
        self._filled += count
        if self._filled == len(frame):
            self._frame = None
            self._frame_received(memoryview(frame))

    def take_completed(self) -> list[Completed[K]]:
        """Return the outcomes since the last call."""
        completed, self._completed = self._completed, []
        return completed

    def is_waiting(self, token: K) -> bool:
        """Return whether a request waits for a handshake or a login, so that the broker has not received it."""
        return any(waiting is token for _, waiting, _, _ in self._waiting)

    def abandon(
        self, error: HeadraceError, unsent: HeadraceError | None = None
    ) -> list[Completed[K]]:
        """Close the connection: every pending request fails.

        Args:
            error: The error of the requests.
            unsent: The error of requests that the broker has not received; None for the same error.
        """
        failed = [(entry.token, error) for entry in self._in_flight if entry.token is not None]
        failed += [(token, unsent or error) for _, token, _, _ in self._waiting]
        failed += [(token, error) for token in self._unconfirmed]
        self._unconfirmed.clear()
        self._in_flight.clear()
        self._waiting.clear()
        self._output.clear()
        return self.take_completed() + [Completed(token, each) for token, each in failed]

    def _split(self, end: int) -> None:
        """Handle the frames in the first `end` bytes of the chunk."""
        chunk = self._chunk
        position = 0
        while end - position >= _LENGTH_BYTES:
            start = position + _LENGTH_BYTES
            length = self._checked_length(chunk[position:start])
            position = start + length
            if position > end:
                self._held = 0
                self._filled = end - start
                self._frame = bytearray(length)
                self._frame[: self._filled] = memoryview(chunk)[start:end]
                return
            self._frame_received(memoryview(chunk[start:position]))
        self._held = end - position
        chunk[: self._held] = chunk[position:end]

    def _checked_length(self, prefix: bytearray) -> int:
        length = int.from_bytes(prefix, "big", signed=True)
        limit = self._max_frame_bytes if self.ready else HANDSHAKE_MAX_FRAME_BYTES
        if _LENGTH_BYTES <= length <= limit:
            return length
        if prefix[0] == _TLS_ALERT and not self.ready:
            raise ProtocolError(f"{self.peer} speaks TLS: set security.protocol=SSL or SASL_SSL")
        if not self.ready:
            raise ProtocolError(
                f"{self.peer} does not answer in the Kafka protocol "
                f"(first bytes {bytes(prefix)!r}); is it a TLS or an HTTP port?"
            )
        raise ProtocolError(f"{self.peer} announces a response of {length} bytes, limit {limit}")

    def _encode(
        self, request: Message, version: int, token: K | None, *, answered: bool = True
    ) -> None:
        self._correlation_id = (self._correlation_id + 1) & 0x7FFFFFFF
        header = RequestHeader(request.API_KEY, version, self._correlation_id, self._client_id)
        self._output += encode_request(header, request)
        if answered:
            response_type = response_class(request.API_KEY)
            assert response_type is not None, f"{type(request).__name__} has no response"
            self._in_flight.append(_InFlight(self._correlation_id, response_type, version, token))

    def _handshake(self, version: int) -> None:
        request = ApiVersionsRequest(
            client_software_name="headrace", client_software_version=__version__
        )
        self._encode(request, version, None)

    def _frame_received(self, frame: memoryview) -> None:
        if not self._in_flight:
            raise ProtocolError(f"{self.peer} sent a response without a request")
        entry = self._in_flight.popleft()
        correlation_id = int.from_bytes(frame[:4], "big", signed=True)
        if correlation_id != entry.correlation_id:
            self._in_flight.appendleft(entry)
            raise ProtocolError(
                f"{self.peer} answered request {correlation_id} where {entry.correlation_id} was due"
            )
        if entry.token is None:
            self._answered(frame, entry)
            return
        try:
            _, response = decode_response(frame, entry.response_type, entry.version)
        except Exception as error:
            self._in_flight.appendleft(entry)
            if isinstance(error, ProtocolError):
                raise
            what = f"{self.peer} sent a {entry.response_type.__name__} that cannot be read"
            raise ProtocolError(f"{what}: {error!r}") from error
        self._completed.append(Completed(entry.token, response))
        if self._holding and not self._in_flight and self._exchange is not None:
            self._begin_exchange()

    def _answered(self, frame: memoryview, entry: _InFlight[K]) -> None:
        """Handle the response to a request of the connection itself."""
        if entry.response_type is ApiVersionsResponse:
            self._handshake_answered(frame, entry)
            return
        _, response = decode_response(frame, entry.response_type, entry.version)
        exchange = self._exchange
        assert exchange is not None, (
            "only a login sends requests of the connection after the handshake"
        )
        if isinstance(response, SaslHandshakeResponse):
            self._ask_login(exchange.agreed(response))
            return
        assert isinstance(response, SaslAuthenticateResponse), "a login has these two requests only"
        request = exchange.answered(response)
        if request is not None:
            self._ask_login(request)
            return
        self.logins += 1
        self.session_lifetime_ms = exchange.session_lifetime_ms
        self._exchange = None
        self._exchanging = False
        self._release()

    def _begin_exchange(self) -> None:
        assert self._exchange is not None, "the caller has checked that a login is pending"
        assert self.versions is not None, "a login begins after the handshake"
        request = self._exchange.begin(self.versions)
        self._exchanging = True
        self._encode(request, HANDSHAKE_VERSION, None)

    def _ask_login(self, request: SaslAuthenticateRequest) -> None:
        assert self.versions is not None, "a login begins after the handshake"
        ours = our_range(request)
        theirs = self.versions.get(request.API_KEY)
        version = choose_version(request.API_KEY, ours, theirs, peer=self.peer)
        self._encode(request, version, None)

    def _release(self) -> None:
        """Send the requests that have waited."""
        self.ready = True
        self._holding = False
        waiting, self._waiting = self._waiting, deque()
        for request, token, answered, max_version in waiting:
            self.send(request, token, answered=answered, max_version=max_version)

    def _handshake_answered(self, frame: memoryview, entry: _InFlight[K]) -> None:
        response = self._decode_versions(frame, entry.version)
        table = version_table(
            (row.api_key, row.min_version, row.max_version) for row in response.api_keys
        )
        if response.error_code == ErrorCode.UNSUPPORTED_VERSION and entry.version > 0:
            theirs = table.get(ApiKey.API_VERSIONS, VersionRange(0, 0))
            self._handshake(max(0, min(theirs.max, entry.version - 1)))
            return
        if response.error_code:
            raise ProtocolError(
                f"{self.peer} refuses the handshake: {ErrorCode(response.error_code).name}"
            )
        self.versions = table
        self._extensions = response.headrace_extensions
        if not self._authenticates:
            self._release()

    @staticmethod
    def _decode_versions(frame: memoryview, version: int) -> ApiVersionsResponse:
        # A response with error 35 is always in version 0; its body begins with the code.
        code = int.from_bytes(frame[4:6], "big", signed=True)
        if code == ErrorCode.UNSUPPORTED_VERSION:
            version = 0
        return decode_response(frame, ApiVersionsResponse, version)[1]
