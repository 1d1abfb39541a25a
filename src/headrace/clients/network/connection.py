"""One connection to a broker, without the socket: framing, correlation, versions, and who waits for what.

A driver owns one `Connection` per socket. It writes what `take_output` returns, receives into `get_buffer` and
reports by `bytes_received`, and collects outcomes from `take_completed`. Responses come in the order of the requests
(a Kafka broker answers a connection strictly in order); anything else is a protocol error, and then, as after every
other one, the connection is of no more use.

Requests may be sent before the broker's versions are known: they wait here until the handshake is done. The
handshake is ApiVersions in our highest version. A broker that does not know it answers in version 0 with error 35
and its own range, and is asked again in the highest version of that range (KIP-511). A client that logs in does so
then: the owner of the connection hands over the means (`authenticate`), once at the beginning and again before the
session ends (KIP-368). While the exchange is under way, requests wait as they do for the handshake.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Final, Generic, NamedTuple, TypeVar

from headrace import __version__
from headrace.clients.network.authentication import HANDSHAKE_VERSION, SaslExchange
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
"""Nothing before the end of the handshake is this large, unless the other side does not speak Kafka."""

_LENGTH_BYTES: Final = 4
_TLS_ALERT: Final = 0x15
"""The first byte of what a TLS server answers who does not begin with a handshake."""
_CHUNK_BYTES: Final = 16 << 10
"""What is received at once between frames: most responses are smaller, and then one read takes in several."""


class Completed(NamedTuple, Generic[K]):
    """The outcome of one request."""

    token: K
    outcome: Message | HeadraceError | None
    """None for a request that has no response."""


class _InFlight(NamedTuple, Generic[K]):
    correlation_id: int
    response_type: type[Message]
    version: int
    token: K | None
    """None for what the connection asks for itself."""


class Connection(Generic[K]):
    """The protocol state of one connection; `K` is the type by which the owner tells its requests apart."""

    def __init__(
        self,
        *,
        client_id: str,
        peer: str = "the broker",
        max_frame_bytes: int = DEFAULT_MAX_FRAME_BYTES,
        authenticates: bool = False,
    ) -> None:
        """Begin the handshake.

        Args:
            client_id: The name by which the broker knows the client.
            peer: The broker's name in messages.
            max_frame_bytes: No response is larger.
            authenticates: Whether nothing may be asked before `authenticate`.
        """
        self.peer = peer
        self.versions: dict[int, VersionRange] | None = None
        """What the broker speaks, by API key; None until it has said so."""
        self._extensions: Sequence[str] = ()
        """What it understands besides Kafka's protocol."""
        self.ready = False
        """Whether the handshake is done."""
        self.logins = 0
        """How often we have logged in."""
        self.session_lifetime_ms = 0
        """How long the last login lasts; 0 is for ever."""
        self._authenticates = authenticates
        self._exchange: SaslExchange | None = None
        """The login that is to come or under way."""
        self._exchanging = False
        self._holding = True
        """Whether requests wait."""
        self._client_id = client_id
        self._max_frame_bytes = max_frame_bytes
        self._correlation_id = 0
        self._in_flight: deque[_InFlight[K]] = deque()
        self._waiting: deque[tuple[Message, K, bool, int | None]] = deque()
        self._output: list[Payload] = []
        self._unconfirmed: list[K] = []
        """Requests without an answer that may not have been written yet."""
        self._completed: list[Completed[K]] = []
        self._chunk = bytearray(_CHUNK_BYTES)
        self._held = 0
        """Bytes at the start of the chunk that belong to a length which is not complete."""
        self._frame: bytearray | None = None
        self._filled = 0
        self._handshake(CLIENT_MAX_VERSIONS[ApiKey.API_VERSIONS])

    @property
    def wants_credentials(self) -> bool:
        """Whether nothing goes on before `authenticate`."""
        return not self.ready and self.versions is not None and self._exchange is None

    @property
    def logging_in(self) -> bool:
        """Whether the broker has been asked to log us in and has not said that it did."""
        return self._exchanging

    @property
    def answers(self) -> int:
        """How many requests have been answered, the connection's own included."""
        return self._correlation_id - len(self._in_flight)

    @property
    def idle(self) -> bool:
        """Whether nothing is waited for."""
        return not (self._in_flight or self._waiting or self._unconfirmed)

    def send(
        self, request: Message, token: K, *, answered: bool = True, max_version: int | None = None
    ) -> None:
        """Queue a request; its outcome appears in `take_completed` under `token`.

        A version that both sides speak is chosen here; when there is none, the outcome is an UNSUPPORTED_VERSION.

        Args:
            request: The request.
            token: Names the request among the outcomes.
            answered: False for Produce with acks=0: complete as soon as it is written.
            max_version: The newest version that may be chosen; None is the newest of ours.
        """
        if self._holding:
            self._waiting.append((request, token, answered, max_version))
            return
        assert self.versions is not None, "requests wait for the handshake"
        api_key = request.API_KEY
        try:
            version = choose_version(
                api_key,
                our_range(request, max_version),
                self.versions.get(api_key),
                peer=self.peer,
            )
            leave_out_unknown(request, self._extensions)
            self._encode(request, version, token if answered else None, answered=answered)
        except Exception as error:  # noqa: BLE001 - whoever waits for the outcome gets it
            what = f"{type(request).__name__} cannot be sent to {self.peer}"
            self._completed.append(Completed(token, InternalError.of(error, what)))
            return
        if not answered:
            self._unconfirmed.append(token)

    def hold(self) -> None:
        """From now on let requests wait until the end of the login that is to come."""
        self._holding = True

    def authenticate(self, client: SaslClient) -> None:
        """Log in, or log in again, as soon as everything that was asked before is answered; requests wait meanwhile.

        Raises:
            AuthenticationError: The broker cannot be asked; close the connection.
        """
        self._holding = True
        self._exchange = SaslExchange(client, self.peer)
        if not self._in_flight:
            self._begin_exchange()

    def written(self) -> None:
        """Take note that all output so far has been written: requests without an answer are complete."""
        self._completed += [Completed(token, None) for token in self._unconfirmed]
        self._unconfirmed.clear()

    def take_output(self) -> list[Payload]:
        """Return the buffers to be written, in order, and forget them."""
        output, self._output = self._output, []
        return output

    def get_buffer(self) -> memoryview:
        """Return where the next received bytes belong; never empty.

        Every frame ends up in a buffer of its own, so records in a response can refer to it; of a large one only the
        beginning is copied there, the rest is received into it.
        """
        if self._frame is not None:
            return memoryview(self._frame)[self._filled :]
        return memoryview(self._chunk)[self._held :]

    def bytes_received(self, count: int) -> None:
        """Take note of `count` bytes written into the buffer.

        Raises:
            ProtocolError: The broker broke the protocol; close the connection and fail what it carried.
            AuthenticationError: The broker did not log us in; the same.
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

    def abandon(self, error: HeadraceError) -> list[Completed[K]]:
        """Give up the connection: every request without an outcome fails with `error`."""
        tokens = [entry.token for entry in self._in_flight if entry.token is not None]
        tokens += [token for _, token, _, _ in self._waiting]
        tokens += self._unconfirmed
        self._unconfirmed.clear()
        self._in_flight.clear()
        self._waiting.clear()
        self._output.clear()
        return self.take_completed() + [Completed(token, error) for token in tokens]

    def _split(self, end: int) -> None:
        """Take the frames out of the chunk's first `end` bytes."""
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
            raise ProtocolError(f"{self.peer} sent a response that nothing asked for")
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
        """Take in the answer to what the connection asked for itself."""
        if entry.response_type is ApiVersionsResponse:
            self._handshake_answered(frame, entry)
            return
        _, response = decode_response(frame, entry.response_type, entry.version)
        exchange = self._exchange
        assert exchange is not None, "only an exchange asks for this"
        if isinstance(response, SaslHandshakeResponse):
            self._ask_login(exchange.agreed(response))
            return
        assert isinstance(response, SaslAuthenticateResponse), "nothing else is asked for"
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
        assert self._exchange is not None, "there is one to begin"
        assert self.versions is not None, "the handshake comes first"
        request = self._exchange.begin(self.versions)
        self._exchanging = True
        self._encode(request, HANDSHAKE_VERSION, None)

    def _ask_login(self, request: SaslAuthenticateRequest) -> None:
        assert self.versions is not None, "the handshake comes first"
        ours = our_range(request)
        theirs = self.versions.get(request.API_KEY)
        version = choose_version(request.API_KEY, ours, theirs, peer=self.peer)
        self._encode(request, version, None)

    def _release(self) -> None:
        """Send what waited."""
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
        # Error 35 is always answered in version 0, whatever was asked for; its body begins with the code.
        code = int.from_bytes(frame[4:6], "big", signed=True)
        if code == ErrorCode.UNSUPPORTED_VERSION:
            version = 0
        return decode_response(frame, ApiVersionsResponse, version)[1]
