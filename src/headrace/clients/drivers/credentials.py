"""The credentials of a client: a new SASL exchange for each login, with a new nonce or the current token."""

from __future__ import annotations

import base64
import inspect
import os
import time
from collections.abc import Mapping
from typing import Any, Final

from headrace.clients.config import ClientConfig
from headrace.errors import AuthenticationError
from headrace.security.mechanisms import OAUTHBEARER, PLAIN, SaslClient, SaslError
from headrace.security.oauthbearer import OAuthBearerClient
from headrace.security.plain import PlainClient
from headrace.security.scram import ScramClient, ScramMechanism

NONCE_BYTES: Final = 24
TOKEN_SHARE: Final = 0.8
"""The part of its lifetime for which a token is reused, as in librdkafka and in the Java client."""


class Credentials:
    """Creates the client's side of SASL exchanges."""

    def __init__(self, config: ClientConfig) -> None:
        self._config = config
        self._token: tuple[Any, ...] = ()
        """The last result of the program's function: the token, and for `oauth_cb` the expiry and more."""
        self._token_until_s = 0.0
        """The time in seconds since 1970 until which the token is reused. 0 is not at all."""

    @property
    def program_is_asked(self) -> bool:
        """Whether the next login needs a new token from the program's function, which may block."""
        fresh = self._token and time.time() < self._token_until_s
        return self._config.sasl_mechanism == OAUTHBEARER and not fresh

    def ask_program(self) -> Any:
        """Return the result of the program's function: a token, or an awaitable of one."""
        config = self._config
        if config.oauth_cb is not None:
            return config.oauth_cb(config.sasl_oauthbearer_config)
        assert config.sasl_oauthbearer_token is not None, (
            "check_security has checked that one of the functions is set"
        )
        return config.sasl_oauthbearer_token()

    @property
    def asks_a_coroutine(self) -> bool:
        """Whether the program's function is a coroutine function, to be called on the event loop."""
        return inspect.iscoroutinefunction(
            self._config.oauth_cb or self._config.sasl_oauthbearer_token
        )

    def keep(self, answer: Any) -> None:
        """Store the result of the program's function.

        Raises:
            AuthenticationError: The result has the wrong form, or the token has expired.
        """
        if self._config.oauth_cb is None:
            if not isinstance(answer, str):
                kind = type(answer).__name__
                raise AuthenticationError(f"sasl_oauthbearer_token must return text, not {kind}")
            self._token = (answer,)
            self._token_until_s = 0.0
            return
        if not isinstance(answer, tuple | list) or len(answer) not in {2, 3, 4}:
            raise AuthenticationError(
                "oauth_cb must return (token, expiry in seconds since 1970[, principal[, extensions]])"
            )
        now_s = time.time()
        try:
            lifetime_s = float(answer[1]) - now_s
        except (TypeError, ValueError):
            raise AuthenticationError("oauth_cb returned an expiry that is not a number") from None
        if lifetime_s <= 0:
            raise AuthenticationError("oauth_cb returned a token that has expired already")
        self._token = tuple(answer)
        self._token_until_s = now_s + TOKEN_SHARE * lifetime_s

    def client(self) -> SaslClient:
        """Return the client's side of a new exchange.

        Raises:
            AuthenticationError: The mechanism cannot express the configured user name, password or token.
        """
        config = self._config
        mechanism, username, password = (
            config.sasl_mechanism,
            config.sasl_username,
            config.sasl_password,
        )
        try:
            if mechanism == PLAIN:
                return PlainClient(username, password)
            if mechanism == OAUTHBEARER:
                return OAuthBearerClient(self._token[0], self._extensions())
            nonce = base64.b64encode(os.urandom(NONCE_BYTES)).decode()
            return ScramClient(ScramMechanism.named(mechanism), username, password, nonce)
        except SaslError as error:
            raise AuthenticationError(str(error)) from None

    def _extensions(self) -> Mapping[str, str]:
        extensions = self._token[3] if len(self._token) > 3 else None
        return extensions or {}


def no_token(error: BaseException) -> AuthenticationError:
    """Return the error for an exception of the program's function for tokens."""
    if isinstance(error, AuthenticationError):
        return error
    # The text of the cause comes from the program's own function, so it may be shown to the program.
    failure = AuthenticationError(
        f"the function for tokens failed: {type(error).__name__}: {error}"
    )
    failure.__cause__ = error
    return failure
