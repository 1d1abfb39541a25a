"""SASL in the broker: the exchange by which a client authenticates, and the requests that are allowed before it.

    SaslHandshake        The client chooses a mechanism, and a `SaslExchange` begins.
    SaslAuthenticate     Carries the messages of the exchange; after SaslHandshake v0, frames without a header do.
    other requests       Allowed until `valid_until_ms`. Then the same user has to authenticate again (KIP-368).

All failures look the same to the client. The response leaves at a fixed time after the request, so that neither its
text nor its time shows whether the user exists. Then the broker closes the connection.
"""

from __future__ import annotations

import base64
import ipaddress
from collections.abc import Callable, Mapping, Sequence
from hmac import compare_digest
from typing import Any, Final, TypeVar

from headrace.broker.access.audit import Audit
from headrace.broker.access.credentials import ScramCredentials
from headrace.broker.context import CloseConnection, RequestContext
from headrace.broker.session import SaslExchange, Session
from headrace.broker.waiting.purgatory import Purgatory
from headrace.config.broker import BrokerConfig
from headrace.config.jaas import plain_users
from headrace.config.security import BrokerSecurityConfig
from headrace.deferred import Deferred
from headrace.errors import ConfigError, ErrorCode
from headrace.ports import Entropy, Journal
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.codec import Message
from headrace.protocol.messages.sasl_authenticate import SaslAuthenticateResponse
from headrace.protocol.messages.sasl_handshake import SaslHandshakeResponse
from headrace.security.mechanisms import OAUTHBEARER, PLAIN, SaslError, SaslServer
from headrace.security.oauthbearer import OAuthBearerServer, TokenIdentity
from headrace.security.plain import PlainServer
from headrace.security.principal import Principal
from headrace.security.scram import ScramCredential, ScramMechanism, ScramServer
from headrace.security.tokens import KeySet, TokenRules, UnknownKeyError, require_library
from headrace.types import NEVER_MS

BEFORE_AUTHENTICATION: Final = frozenset(
    {ApiKey.API_VERSIONS, ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE}
)
"""The requests that a client may send before it has authenticated. Shells need not decode others."""
UNAUTHENTICATED: Final = "the client has to authenticate first (SASL)"
_MIN_REAUTHENTICATION_MS: Final = 1000
_FAILED: Final = (
    "Authentication failed during authentication due to invalid credentials with SASL mechanism {}"
)
_DONE: Final = "SaslAuthenticate request received after successful authentication"
_NO_STATE: Final = "SaslAuthenticate does not fit here: SaslHandshake comes first"

T = TypeVar("T")
RunAside = Callable[[Callable[[], Any], Callable[[Any], object]], Callable[[], object]]
"""Runs the first function in any thread, then calls the second with the result in the thread of the broker.

Returns a function that cancels the work: the first function need not run, and the second is not called.
"""


def run_at_once(work: Callable[[], T], done: Callable[[T], object]) -> Callable[[], None]:
    """Run work at once, in this thread: the `RunAside` of shells without threads."""
    done(work())
    return lambda: None


class _Refusal:
    """A response that waits for its fixed time."""

    __slots__ = ("_purgatory", "_response", "deferred")

    def __init__(self, response: Message, purgatory: Purgatory) -> None:
        self.deferred: Deferred[Message] = Deferred(lambda: purgatory.forget(self))
        self._response = response
        self._purgatory = purgatory

    def expire(self) -> None:
        self._purgatory.complete(self, lambda: self.deferred.resolve(self._response))


class _PasswordCheck:
    """The check of one PLAIN password. Any thread may run it."""

    __slots__ = ("_credentials", "_known", "_users")

    def __init__(self, credentials: ScramCredentials, users: Mapping[str, str]) -> None:
        self._credentials = credentials
        self._users = users
        self._known: Sequence[ScramCredential | None] = ()
        """The credentials of the user when the check began."""

    def __call__(self, user: str, password: str) -> bool:
        """Check a password. This takes the same time for all users, including unknown ones."""
        self._known = self._credentials.known(user)
        fits = self._credentials.is_password(user, password)
        named = self._users.get(user)
        return fits if named is None else compare_digest(named.encode(), password.encode())

    def holds(self, user: str) -> bool:
        """Return whether the credentials of the user have not changed since the check began."""
        return self._known == self._credentials.known(user)


def _holds(server: PlainServer) -> bool:
    """Return whether the password that a server has accepted is still the password of the user."""
    check = server.is_password
    return not isinstance(check, _PasswordCheck) or check.holds(server.user)


class Authenticator:
    """Authenticates the clients of all connections."""

    def __init__(
        self,
        config: BrokerConfig,
        credentials: ScramCredentials,
        purgatory: Purgatory,
        *,
        entropy: Entropy,
        journal: Journal,
        audit: Audit,
    ) -> None:
        """Prepare the mechanisms of all listeners.

        Raises:
            ConfigError: A mechanism is enabled without the keys or credentials that it needs.
        """
        self._config = config
        self._credentials = credentials
        self._purgatory = purgatory
        self._entropy = entropy
        self._journal = journal
        self._audit = audit
        self._listeners: dict[str, BrokerSecurityConfig] = {}
        self._keys: dict[str, KeySet] = {}
        self.run_aside: RunAside = run_at_once
        """Runs the check of a password, which takes milliseconds. A shell with threads replaces this attribute."""
        self.key_missing: Callable[[str], object] = _nothing
        """Called with the URL of a key set that lacks the key of a token. A shell that reads key sets replaces this
        attribute."""
        self.key_urls: Final[Mapping[str, int]] = _key_urls(config)
        """The URLs of the key sets of tokens, and the time between two reads in milliseconds. The shell calls
        `keys_read`."""

    # For shells

    def keys_read(self, url: str, text: bytes) -> None:
        """Replace the keys of a token issuer.

        Raises:
            ConfigError: The keys cannot be parsed. The previous keys stay.
        """
        self._keys[url] = KeySet(text)

    # For the broker

    def gate(self, context: RequestContext, api_key: int) -> None:
        """Check a request of a session that is not authenticated, or whose authentication has expired.

        Raises:
            CloseConnection: The request is not allowed before authentication.
        """
        if api_key in BEFORE_AUTHENTICATION:
            return
        if context.session.authenticated:
            raise CloseConnection(
                "the session has expired and the client has not authenticated again"
            )
        raise CloseConnection(UNAUTHENTICATED)

    def handshake(
        self, context: RequestContext, mechanism: str
    ) -> SaslHandshakeResponse | Deferred[Any]:
        """Begin an exchange; see `headrace.broker.handlers.sasl_handshake`.

        Raises:
            CloseConnection: The client has failed before.
        """
        session = context.session
        _check_not_ended(session)
        if not session.protocol.sasl or session.is_local or self._too_early(context):
            return SaslHandshakeResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE, mechanisms=[])
        config = self._config_of(session)
        offered = _offered(config, session)
        response = SaslHandshakeResponse(error_code=ErrorCode.NONE, mechanisms=offered)
        if session.exchange is not None:
            response = SaslHandshakeResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE, mechanisms=[])
            return self._refuse(context, response, "", "a second SaslHandshake")
        if mechanism not in offered:
            response.error_code = ErrorCode.UNSUPPORTED_SASL_MECHANISM
            reason = "a mechanism that is not enabled"
            if mechanism == PLAIN and PLAIN in _enabled(config):
                reason = "PLAIN without encryption from another machine: use SASL_SSL"
            return self._refuse(context, response, mechanism[:40], reason)
        problem = ""
        if session.authenticated and mechanism != session.mechanism:
            problem = "re-authentication by another mechanism"
        session.exchange = SaslExchange(self._server(mechanism, config, context.now_ms), problem)
        if context.header.api_version == 0:
            session.raw_tokens = True
            session.on_change()
        return response

    def authenticate(
        self, context: RequestContext, token: bytes
    ) -> SaslAuthenticateResponse | Deferred[Any]:
        """Handle the client's next message; see `headrace.broker.handlers.sasl_authenticate`.

        Raises:
            CloseConnection: The client has failed before.
        """
        session, exchange = context.session, context.session.exchange
        _check_not_ended(session)
        if exchange is None or exchange.busy:
            response = SaslAuthenticateResponse(
                error_code=ErrorCode.ILLEGAL_SASL_STATE,
                error_message=_DONE if session.authenticated else _NO_STATE,
                auth_bytes=b"",
            )
            if session.authenticated:
                return response
            return self._refuse(context, response, "", "SaslAuthenticate out of turn")
        if len(token) > self._config_of(session).sasl_server_max_receive_size:
            return self._failed(context, exchange, SaslError("a message that is too large"))
        if not exchange.server.costly:
            return self._stepped(context, exchange, _step(exchange.server, token))
        exchange.busy = True
        answered: Deferred[Any] = Deferred()

        def finish(outcome: bytes | SaslError) -> None:
            exchange.busy = False
            answer = self._stepped(context, exchange, outcome)
            if isinstance(answer, Deferred):
                answered.follow(answer)
            else:
                answered.resolve(answer)

        give_up = self.run_aside(lambda: _step(exchange.server, token), finish)
        if exchange.busy:
            answered.on_cancel(give_up)
        return answered

    def _stepped(
        self, context: RequestContext, exchange: SaslExchange, outcome: bytes | SaslError
    ) -> SaslAuthenticateResponse | Deferred[Any]:
        if isinstance(outcome, SaslError):
            return self._failed(context, exchange, outcome)
        server, session = exchange.server, context.session
        if not server.done:
            if isinstance(server, OAuthBearerServer) and server.refusal is not None:
                exchange.failure_audited = True
                self._audit.authentication_failed(session, OAUTHBEARER, str(server.refusal))
            return SaslAuthenticateResponse(
                error_code=ErrorCode.NONE, error_message="", auth_bytes=outcome
            )
        problem = exchange.problem
        if isinstance(server, PlainServer) and not _holds(server):
            problem = "the password was changed during the exchange"
        if session.authenticated and session.principal != Principal(server.user):
            problem = problem or "re-authentication as another user"
        if problem:
            return self._failed(context, exchange, SaslError(problem))
        lifetime_ms = self._authenticated(context, server)
        return SaslAuthenticateResponse(
            error_code=ErrorCode.NONE,
            error_message="",
            auth_bytes=outcome,
            session_lifetime_ms=lifetime_ms,
        )

    def _authenticated(self, context: RequestContext, server: SaslServer) -> int:
        """Authenticate a session as a user.

        Return for how long, in milliseconds; 0 for as long as the connection lasts.
        """
        session, now_ms = context.session, context.now_ms
        ends_ms = NEVER_MS if server.expires_ms is None else server.expires_ms
        if most_ms := self._config_of(session).connections_max_reauth_ms:
            ends_ms = min(ends_ms, now_ms + most_ms)
        session.principal = Principal(server.user)
        session.mechanism = server.mechanism
        session.valid_until_ms = ends_ms
        session.authenticated_ms = now_ms
        session.exchange = None
        session.authenticated = True
        session.raw_tokens = False
        session.on_change()
        self._audit.authenticated(session, server.mechanism)
        return 0 if ends_ms == NEVER_MS else max(1, ends_ms - now_ms)

    # Refusals

    def _failed(
        self, context: RequestContext, exchange: SaslExchange, error: SaslError
    ) -> Deferred[Any]:
        mechanism = exchange.server.mechanism
        response = SaslAuthenticateResponse(
            error_code=ErrorCode.SASL_AUTHENTICATION_FAILED,
            error_message=_FAILED.format(mechanism),
            auth_bytes=b"",
        )
        if not exchange.failure_audited:
            user = exchange.server.user[:255] or None
            self._audit.authentication_failed(context.session, mechanism, str(error), user=user)
        return self._end(context, response, str(error))

    def _refuse(
        self, context: RequestContext, response: Message, mechanism: str, reason: str
    ) -> Deferred[Any]:
        """Refuse a message that is not the next step of an exchange."""
        self._audit.authentication_failed(context.session, mechanism or "unknown", reason)
        return self._end(context, response, reason)

    def _end(self, context: RequestContext, response: Message, reason: str) -> Deferred[Any]:
        """Send the response at a fixed time after the request, and close the connection then."""
        session = context.session
        session.ended = f"authentication failed: {reason}"
        delay_ms = self._config_of(session).connection_failed_authentication_delay_ms
        refusal = _Refusal(response, self._purgatory)
        self._purgatory.add(refusal, context.now_ms + delay_ms)
        return refusal.deferred

    # Parts

    def _too_early(self, context: RequestContext) -> bool:
        """Return whether a session that was just authenticated is authenticated again."""
        session = context.session
        if not session.authenticated or context.now_ms >= session.valid_until_ms:
            return False
        return context.now_ms - session.authenticated_ms < _MIN_REAUTHENTICATION_MS

    def _config_of(self, session: Session) -> BrokerSecurityConfig:
        config = self._listeners.get(session.listener)
        if config is None:
            config = self._config.for_listener(session.listener)
            self._listeners[session.listener] = config
        return config

    def _server(self, mechanism: str, config: BrokerSecurityConfig, now_ms: int) -> SaslServer:
        if mechanism == PLAIN:
            self._credentials.secret()  # in the broker's thread, not in the one that checks the password
            users = plain_users(config.plain_sasl_jaas_config)
            return PlainServer(_PasswordCheck(self._credentials, users))
        if mechanism == OAUTHBEARER:
            return OAuthBearerServer(lambda token: self._verify(token, config, now_ms))
        scram = ScramMechanism.named(mechanism)
        nonce = base64.b64encode(self._entropy.uuid() + self._entropy.uuid()).decode()
        return ScramServer(scram, lambda user: self._credentials.find(user, scram), nonce)

    def _verify(self, token: str, config: BrokerSecurityConfig, now_ms: int) -> TokenIdentity:
        url = config.sasl_oauthbearer_jwks_endpoint_url
        keys = self._keys.get(url)
        if keys is None:
            raise SaslError("the keys of the issuer have not been read yet")
        try:
            return keys.verify(token, _rules(config), now_ms)
        except UnknownKeyError:
            self.key_missing(url)
            raise


def _check_not_ended(session: Session) -> None:
    """Refuse a second attempt: a session that is being renewed may have many requests in flight.

    Raises:
        CloseConnection: An attempt has failed before.
    """
    if session.ended:
        raise CloseConnection(session.ended)


def _step(server: SaslServer, token: bytes) -> bytes | SaslError:
    try:
        return server.step(token)
    except SaslError as error:
        return error


def _list(text: str) -> list[str]:
    return [entry for entry in map(str.strip, text.split(",")) if entry]


def _enabled(config: BrokerSecurityConfig) -> list[str]:
    return _list(config.sasl_enabled_mechanisms)


def _offered(config: BrokerSecurityConfig, session: Session) -> list[str]:
    """Return the mechanisms for a connection. PLAIN is left out where others could read passwords."""
    readable = not (
        session.protocol.encrypted
        or config.headrace_sasl_plain_allow_plaintext
        or _is_loopback(session.client_host)
    )
    return [name for name in _enabled(config) if not (readable and name == PLAIN)]


def _is_loopback(host: str) -> bool:
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_loopback


def _rules(config: BrokerSecurityConfig) -> TokenRules:
    return TokenRules(
        config.sasl_oauthbearer_expected_issuer,
        _list(config.sasl_oauthbearer_expected_audience),
        config.sasl_oauthbearer_clock_skew_seconds,
        config.sasl_oauthbearer_sub_claim_name,
    )


def _key_urls(config: BrokerConfig) -> dict[str, int]:
    """Return the URLs of the key sets, and the time between two reads in milliseconds.

    Raises:
        ConfigError: OAUTHBEARER is enabled without a URL of keys, so that any token would be accepted.
    """
    names = {""} | {key.split(".", 1)[0] for key, _ in config.listener_overrides}
    urls: dict[str, int] = {}
    for name in names:
        own = config.for_listener(name) if name else config
        if OAUTHBEARER not in _enabled(own):
            continue
        url = own.sasl_oauthbearer_jwks_endpoint_url
        if not url.startswith(("https://", "file:")):
            raise ConfigError(
                "sasl.enabled.mechanisms: OAUTHBEARER needs the keys of the token issuer: set "
                "sasl.oauthbearer.jwks.endpoint.url to an https: or file: URL of a JSON Web Key Set"
                + (f", got {url[: url.find(':') + 1][:20]!r}..." if url else "")
            )
        require_library()
        refresh_ms = own.sasl_oauthbearer_jwks_endpoint_refresh_ms
        urls[url] = min(refresh_ms, urls.get(url, refresh_ms))
    return urls


def _nothing(_: str) -> None:
    pass
