"""Verifies JSON Web Tokens (RFC 7519): signature, algorithm, issuer, audience and times.

A token is refused unless a key of the issuer's key set has signed it, with an algorithm for that kind of key. The
module needs PyJWT and cryptography (`pip install headrace[oauth]`). They are imported when the first key set is read.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from headrace.errors import ConfigError
from headrace.security.mechanisms import SaslError
from headrace.security.oauthbearer import TokenIdentity

_ALGORITHMS: Final = {
    "RSA": ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"),
    "EC": ("ES256", "ES384"),
    "OKP": ("EdDSA",),
}
"""The accepted algorithms for each kind of key. Algorithms with a shared secret (HS256) and "none" are not accepted."""
_KEYS_LIMIT: Final = 100
_RSA_BITS: Final = 2048
_USER_CHARACTERS_LIMIT: Final = 255
_LATEST_S: Final = 1 << 40


class UnknownKeyError(SaslError):
    """A token names a key that is not in the set. The set may have to be read again."""


@dataclass(frozen=True, slots=True)
class TokenRules:
    """The rules that the claims of a token have to follow.

    Attributes:
        issuer: The required issuer; "" for any.
        audiences: The audiences of which the token must have one; empty for any.
        clock_skew_s: The greatest difference between the clocks of the issuer and the broker, in seconds.
        user_claim: The claim that names the user.
    """

    issuer: str = ""
    audiences: Sequence[str] = ()
    clock_skew_s: int = 30
    user_claim: str = "sub"


def require_library() -> None:
    """Check that tokens can be verified.

    Raises:
        ConfigError: A library is missing. The message says what to install.
    """
    try:
        import cryptography  # noqa: F401, PLC0415 - optional
        import jwt  # noqa: F401, PLC0415 - optional
    except ImportError as error:
        raise ConfigError(
            "sasl.enabled.mechanisms: OAUTHBEARER needs PyJWT and cryptography: pip install 'headrace[oauth]'"
        ) from error


class KeySet:
    """The keys of an issuer: a JSON Web Key Set (RFC 7517)."""

    def __init__(self, text: bytes | str) -> None:
        """Read a key set. Keys of a kind that is not accepted are left out.

        Raises:
            ConfigError: The text is not a key set, or none of its keys can be used.
        """
        require_library()
        try:
            found = json.loads(text)["keys"]
        except (ValueError, KeyError, TypeError, RecursionError):
            raise ConfigError("not a JSON Web Key Set") from None
        if not isinstance(found, list) or len(found) > _KEYS_LIMIT:
            raise ConfigError(f"a JSON Web Key Set has a list of at most {_KEYS_LIMIT} keys")
        self._keys: dict[str, tuple[Any, tuple[str, ...]]] = {}
        for number, data in enumerate(found):
            if (usable := _usable(data)) is not None:
                name = data.get("kid")
                self._keys[name if isinstance(name, str) else f"\0{number}"] = usable
        if not self._keys:
            raise ConfigError("the JSON Web Key Set has no key for RSA, EC or EdDSA signatures")

    def __len__(self) -> int:
        return len(self._keys)

    def verify(self, token: str, rules: TokenRules, now_ms: int) -> TokenIdentity:
        """Return the user of a token, and when the token expires.

        Raises:
            UnknownKeyError: The token names a key that is not in the set.
            SaslError: The token is not valid.
        """
        import jwt  # noqa: PLC0415 - optional

        try:
            key, algorithms = self._key_of(jwt.get_unverified_header(token))
            # Times, issuer and audience are checked below, with the caller's clock and without exceptions.
            claims = jwt.decode(
                token,
                key,
                algorithms=list(algorithms),
                options={
                    "verify_signature": True,
                    "verify_exp": False,
                    "verify_nbf": False,
                    "verify_iat": False,
                    "verify_aud": False,
                    "verify_iss": False,
                    "verify_sub": False,
                    "verify_jti": False,
                },
            )
        except SaslError:
            raise
        except Exception as error:  # noqa: BLE001 - any exception of the library means that the token is not valid
            raise SaslError(f"the token is not valid: {type(error).__name__}") from None
        return _identity(claims, rules, now_ms)

    def _key_of(self, header: Mapping[str, Any]) -> tuple[Any, tuple[str, ...]]:
        name = header.get("kid")
        if name is None and len(self._keys) == 1:
            return next(iter(self._keys.values()))
        if not isinstance(name, str) or name not in self._keys:
            raise UnknownKeyError("the token names no key of the issuer's set")
        return self._keys[name]


def _usable(data: Any) -> tuple[Any, tuple[str, ...]] | None:
    """Return a public key and the algorithms that it may verify; None if the key cannot be used."""
    import jwt  # noqa: PLC0415 - optional
    from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey  # noqa: PLC0415 - optional

    if not isinstance(data, dict) or data.get("use", "sig") != "sig":
        return None
    algorithms = _ALGORITHMS.get(str(data.get("kty")), ())
    if "alg" in data:
        algorithms = tuple(name for name in algorithms if name == data["alg"])
    if not algorithms or "d" in data:  # a key set must not contain private keys
        return None
    try:
        key = jwt.PyJWK(data, algorithm=algorithms[0]).key
    except Exception:  # noqa: BLE001 - a key that the library cannot read is left out
        return None
    if isinstance(key, RSAPublicKey) and key.key_size < _RSA_BITS:
        return None
    return key, algorithms


def _identity(claims: Mapping[str, Any], rules: TokenRules, now_ms: int) -> TokenIdentity:
    skew_s, now_s = rules.clock_skew_s, now_ms / 1000
    expires_s = _time(claims, "exp")
    if expires_s is None:
        raise SaslError("the token has no time at which it expires")
    if expires_s + skew_s <= now_s:
        raise SaslError("the token has expired")
    for name in ("nbf", "iat"):
        since_s = _time(claims, name)
        if since_s is not None and since_s - skew_s > now_s:
            raise SaslError(f"the token is not valid yet ({name})")
    if rules.issuer and claims.get("iss") != rules.issuer:
        raise SaslError("the token comes from another issuer")
    _check_audience(claims.get("aud"), rules.audiences)
    user = claims.get(rules.user_claim)
    if not isinstance(user, str) or not 0 < len(user) <= _USER_CHARACTERS_LIMIT:
        raise SaslError(f"the token names no user ({rules.user_claim})")
    if not user.isprintable():
        raise SaslError("the name of the token's user has characters that cannot be shown")
    return TokenIdentity(user, int((expires_s + skew_s) * 1000))


def _time(claims: Mapping[str, Any], name: str) -> float | None:
    value = claims.get(name)
    if value is None:
        return None
    number = isinstance(value, int | float) and not isinstance(value, bool)
    # An integer is finite, but may be too large for a float.
    if not number or (isinstance(value, float) and not math.isfinite(value)):
        raise SaslError(f"the token's {name} is not a time")
    return float(max(-_LATEST_S, min(value, _LATEST_S)))


def _check_audience(audience: Any, accepted: Sequence[str]) -> None:
    if not accepted:
        return
    found = audience if isinstance(audience, list) else [audience]
    if not any(isinstance(entry, str) and entry in accepted for entry in found):
        raise SaslError("the token is for another audience")
