"""SCRAM (RFC 5802, RFC 7677): client and server prove that they know a password, without sending it.

    client                                   server
    n,,n=alice,r=<c>                     ->
                                         <-  r=<c><s>,s=<salt>,i=<iterations>
    c=biws,r=<c><s>,p=<proof>            ->
                                         <-  v=<the server's signature>

The server stores keys that it cannot log in with. Channel binding (SCRAM-...-PLUS) is not offered, as in Kafka. Names
and passwords are hashed without preparation, as in Kafka; see `headrace.security.saslprep`.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
from collections.abc import Callable
from enum import IntEnum
from typing import Final, NamedTuple

from headrace.security.mechanisms import (
    SCRAM_SHA_256,
    SCRAM_SHA_512,
    SaslError,
    base64_of,
    utf8,
)
from headrace.security.saslprep import saslprep

MIN_ITERATIONS: Final = 4096
MAX_ITERATIONS: Final = 16_384
"""The greatest number of iterations of a stored credential, as in Kafka."""
CLIENT_ITERATIONS_LIMIT: Final = 1_000_000
"""The greatest number of iterations that a client computes for a server: half a second."""
_MESSAGE_BYTES_LIMIT: Final = 8192
_SALT_BYTES_LIMIT: Final = 1024
_NONCE: Final = re.compile(r"[\x21-\x2b\x2d-\x7e]{1,1024}")
_BARE_ESCAPE: Final = re.compile(r"=(?!2C|3D)")
_CLIENT_KEY: Final = b"Client Key"
_SERVER_KEY: Final = b"Server Key"


class ScramMechanism(IntEnum):
    """A hash function for SCRAM, by its number in Kafka's protocol."""

    SHA_256 = 1
    SHA_512 = 2

    @property
    def sasl_name(self) -> str:
        """The name of the mechanism in SASL."""
        return SCRAM_SHA_256 if self is ScramMechanism.SHA_256 else SCRAM_SHA_512

    @property
    def hash_name(self) -> str:
        """The name of the hash function in `hashlib`."""
        return "sha256" if self is ScramMechanism.SHA_256 else "sha512"

    @property
    def size(self) -> int:
        """The length of a hash, and of each key, in bytes."""
        return 32 if self is ScramMechanism.SHA_256 else 64

    @classmethod
    def named(cls, name: str) -> ScramMechanism:
        """Return a mechanism by its SASL name.

        Raises:
            SaslError: The name is unknown.
        """
        for mechanism in cls:
            if mechanism.sasl_name == name:
                return mechanism
        raise SaslError(f"no SCRAM mechanism {name[:40]!r}: SCRAM-SHA-256 and SCRAM-SHA-512 exist")

    def hash(self, data: bytes) -> bytes:
        """Compute H(data) of RFC 5802."""
        return hashlib.new(self.hash_name, data).digest()

    def hmac(self, key: bytes, data: bytes) -> bytes:
        """Compute HMAC(key, data) of RFC 5802."""
        return hmac.digest(key, data, self.hash_name)

    def salted(self, password: str, salt: bytes, iterations: int) -> bytes:
        """Compute Hi(password, salt, iterations) of RFC 5802. This takes milliseconds."""
        return hashlib.pbkdf2_hmac(
            self.hash_name, password.encode("utf-8", "surrogatepass"), salt, iterations
        )


class ScramCredential(NamedTuple):
    """The credential that a server stores for a password. It can check a proof, but cannot make one."""

    salt: bytes
    iterations: int
    stored_key: bytes
    server_key: bytes

    def __repr__(self) -> str:
        return f"ScramCredential(iterations={self.iterations}, ...)"

    def is_password(self, password: str, mechanism: ScramMechanism) -> bool:
        """Return whether a password belongs to the credential. This takes milliseconds."""
        salted = mechanism.salted(password, self.salt, self.iterations)
        client_key = mechanism.hmac(salted, _CLIENT_KEY)
        return hmac.compare_digest(mechanism.hash(client_key), self.stored_key)


def check_password(password: str, iterations: int) -> None:
    """Check whether a credential can be made of a password.

    Raises:
        SaslError: The number of iterations is not allowed, or clients encode the password differently.
    """
    if not MIN_ITERATIONS <= iterations <= MAX_ITERATIONS:
        raise SaslError(
            f"{iterations} iterations; allowed are {MIN_ITERATIONS} to {MAX_ITERATIONS}"
        )
    if not password:
        raise SaslError("a password must not be empty")
    if saslprep(password) != password:
        raise SaslError(
            "the password has characters that some clients replace before they hash it "
            "(RFC 4013: full-width characters, ligatures, unusual spaces, accents as characters of their own)"
        )


def credential_of(
    password: str, mechanism: ScramMechanism, iterations: int, salt: bytes
) -> ScramCredential:
    """Make the credential of a password.

    Raises:
        SaslError: See `check_password`.
    """
    check_password(password, iterations)
    return credential_of_salted(
        mechanism.salted(password, salt, iterations), mechanism, iterations, salt
    )


def credential_of_salted(
    salted_password: bytes, mechanism: ScramMechanism, iterations: int, salt: bytes
) -> ScramCredential:
    """Make the credential of a password that a client of AlterUserScramCredentials has salted."""
    stored_key = mechanism.hash(mechanism.hmac(salted_password, _CLIENT_KEY))
    server_key = mechanism.hmac(salted_password, _SERVER_KEY)
    return ScramCredential(salt, iterations, stored_key, server_key)


class ScramClient:
    """The client side of one exchange."""

    def __init__(self, mechanism: ScramMechanism, username: str, password: str, nonce: str) -> None:
        """Begin an exchange.

        Args:
            mechanism: The hash function.
            username: The user name of the client.
            password: The password of the user.
            nonce: New random characters, printable ASCII without commas, such as 24 bytes in base64.

        Raises:
            SaslError: The name is empty, or the nonce is invalid.
        """
        if not username:
            raise SaslError("SCRAM needs a user name")
        if not _NONCE.fullmatch(nonce):
            raise SaslError("a nonce is printable ASCII without commas")
        self.done = False
        self._scram = mechanism
        self._password = password
        self._nonce = nonce
        self._first_bare = f"n={_escaped(username)},r={nonce}"
        self._signature: bytes | None = None

    @property
    def mechanism(self) -> str:
        """The name of the mechanism in SASL."""
        return self._scram.sasl_name

    def first(self) -> bytes:
        """Return the client-first-message of RFC 5802."""
        return f"n,,{self._first_bare}".encode()

    def step(self, challenge: bytes) -> bytes | None:
        """Read server-first-message and return client-final-message, or check server-final-message.

        Raises:
            SaslError: The server refuses the client, does not know the password, or violates the protocol.
        """
        message = utf8(challenge, "the server's SCRAM message", _MESSAGE_BYTES_LIMIT)
        if self.done:
            raise SaslError("the server goes on after the end of the SCRAM exchange")
        if message.startswith("e="):
            raise SaslError(f"the server refuses the client: {message[2:80]!r}")
        if self._signature is None:
            return self._final(message)
        verifier = message.split(",", 1)[0]
        if not verifier.startswith("v="):
            raise SaslError("the server's last SCRAM message has no signature")
        signature = base64_of(verifier[2:], "the server's signature")
        if not hmac.compare_digest(signature, self._signature):
            raise SaslError("the server does not know the password: its signature is wrong")
        self.done = True
        return None

    def _final(self, server_first: str) -> bytes:
        nonce, salt, iterations = _parse_server_first(server_first)
        if not nonce.startswith(self._nonce) or len(nonce) == len(self._nonce):
            raise SaslError("the server's nonce does not extend the client's nonce")
        scram = self._scram
        salted = scram.salted(self._password, salt, iterations)
        client_key = scram.hmac(salted, _CLIENT_KEY)
        without_proof = f"c=biws,r={nonce}"
        auth_message = f"{self._first_bare},{server_first},{without_proof}".encode()
        proof = _xor(client_key, scram.hmac(scram.hash(client_key), auth_message))
        self._signature = scram.hmac(scram.hmac(salted, _SERVER_KEY), auth_message)
        return f"{without_proof},p={base64.b64encode(proof).decode()}".encode()


class ScramServer:
    """The server side of one exchange."""

    costly: Final = False
    expires_ms: Final = None

    def __init__(
        self, mechanism: ScramMechanism, find: Callable[[str], ScramCredential], nonce: str
    ) -> None:
        """Begin an exchange.

        Args:
            mechanism: The hash function.
            find: Returns the credential of a user; for an unknown user one of `headrace.security.unknown_users`.
            nonce: New random characters, as for `ScramClient`.
        """
        self.done = False
        self.user = ""
        self._scram = mechanism
        self._find = find
        self._own_nonce = nonce
        self._nonce = ""
        self._binding = ""
        self._first_bare = ""
        self._server_first = ""
        self._credential: ScramCredential | None = None
        self._ended = False

    @property
    def mechanism(self) -> str:
        """The name of the mechanism in SASL."""
        return self._scram.sasl_name

    def step(self, response: bytes) -> bytes:
        """Read client-first-message, then client-final-message, and return the response.

        Raises:
            SaslError: The client is refused. The exchange has ended.
        """
        if self._ended:
            raise SaslError("the SCRAM exchange is over")
        self._ended = True  # unless this step succeeds
        message = utf8(response, "a SCRAM message", _MESSAGE_BYTES_LIMIT)
        if self._credential is None:
            answer = self._first(message)
            self._ended = False
            return answer
        return self._final(message, self._credential)

    def _first(self, message: str) -> bytes:
        authorization_id, self._binding, self._first_bare = _parse_gs2(message)
        self.user, client_nonce = _parse_client_first(self._first_bare)
        if authorization_id not in {"", self.user}:
            raise SaslError("the client wants to act for another user")
        credential = self._find(self.user)
        self._nonce = client_nonce + self._own_nonce
        salt = base64.b64encode(credential.salt).decode()
        self._server_first = f"r={self._nonce},s={salt},i={credential.iterations}"
        self._credential = credential
        return self._server_first.encode()

    def _final(self, message: str, credential: ScramCredential) -> bytes:
        without_proof, separator, encoded = message.rpartition(",p=")
        attributes = _attributes(without_proof)
        if not separator or [name for name, _ in attributes[:2]] != ["c", "r"]:
            raise SaslError("a client-final-message that is not c=...,r=...,p=...")
        _refuse_mandatory(attributes[2:])
        if base64_of(attributes[0][1], "the channel binding") != self._binding.encode():
            raise SaslError("the channel binding is not the one that the client began with")
        if not hmac.compare_digest(attributes[1][1].encode(), self._nonce.encode()):
            raise SaslError("the nonce is not the one of this exchange")
        proof = base64_of(encoded, "the proof")
        scram = self._scram
        auth_message = f"{self._first_bare},{self._server_first},{without_proof}".encode()
        signature = scram.hmac(credential.stored_key, auth_message)
        # A proof of another length fails like any other, and takes the same time.
        client_key = _xor(proof, signature) if len(proof) == scram.size else signature
        if not hmac.compare_digest(scram.hash(client_key), credential.stored_key):
            raise SaslError("unknown user or wrong password")
        if self._find(self.user) != credential:
            raise SaslError("the password was changed during the exchange")
        self.done = True
        verifier = scram.hmac(credential.server_key, auth_message)
        return b"v=" + base64.b64encode(verifier)


def _parse_gs2(message: str) -> tuple[str, str, str]:
    """Divide client-first-message into the user to act for, the header, and the rest."""
    parts = message.split(",", 2)
    if len(parts) != 3:
        raise SaslError("a client-first-message without a header")
    binding, authorization, bare = parts
    if binding.startswith("p="):
        raise SaslError("channel binding is not offered")
    if binding not in {"n", "y"}:
        raise SaslError("a client-first-message without a channel binding flag")
    if authorization and not authorization.startswith("a="):
        raise SaslError("a client-first-message with an unknown header")
    authorization_id = _unescaped(authorization[2:]) if authorization else ""
    return authorization_id, f"{binding},{authorization},", bare


def _parse_client_first(bare: str) -> tuple[str, str]:
    """Return user and nonce."""
    attributes = _attributes(bare)
    if [name for name, _ in attributes[:2]] != ["n", "r"]:
        raise SaslError("a client-first-message that is not n=...,r=...")
    _refuse_mandatory(attributes[2:])
    user, nonce = _unescaped(attributes[0][1]), attributes[1][1]
    if not user:
        raise SaslError("a client-first-message without a name")
    if not _NONCE.fullmatch(nonce):
        raise SaslError("a nonce that is empty, too long, or not printable ASCII")
    return user, nonce


def _parse_server_first(message: str) -> tuple[str, bytes, int]:
    """Return nonce, salt and iterations."""
    attributes = _attributes(message)
    if [name for name, _ in attributes[:3]] != ["r", "s", "i"]:
        raise SaslError("the server's first SCRAM message is not r=...,s=...,i=...")
    _refuse_mandatory(attributes[3:])
    salt = base64_of(attributes[1][1], "the salt")
    if not 0 < len(salt) <= _SALT_BYTES_LIMIT:
        raise SaslError(f"a salt of {len(salt)} bytes")
    iterations = attributes[2][1]
    if not re.fullmatch(r"[0-9]{1,9}", iterations):
        raise SaslError("the server names no number of iterations")
    if not MIN_ITERATIONS <= int(iterations) <= CLIENT_ITERATIONS_LIMIT:
        raise SaslError(
            f"the server asks for {iterations} iterations; "
            f"accepted are {MIN_ITERATIONS} to {CLIENT_ITERATIONS_LIMIT}"
        )
    return attributes[0][1], salt, int(iterations)


def _attributes(text: str) -> list[tuple[str, str]]:
    found = []
    for part in text.split(","):
        name, separator, value = part.partition("=")
        if not separator or not name.isalpha():
            raise SaslError("a SCRAM message that is not of attributes")
        found.append((name, value))
    return found


def _refuse_mandatory(extensions: list[tuple[str, str]]) -> None:
    """Refuse extensions that change what is proved. Others must be ignored (RFC 5802, section 5.1)."""
    for name, _ in extensions:
        if name in {"m", "tokenauth"}:
            raise SaslError(f"the SCRAM extension {name} is not supported")
        if len(name) == 1 and name in "acnprsive":
            raise SaslError(f"the SCRAM attribute {name} in a wrong place")


def _escaped(name: str) -> str:
    return name.replace("=", "=3D").replace(",", "=2C")


def _unescaped(name: str) -> str:
    if _BARE_ESCAPE.search(name):
        raise SaslError("a name with an escape that is neither =2C nor =3D")
    return name.replace("=2C", ",").replace("=3D", "=")


def _xor(left: bytes, right: bytes) -> bytes:
    return bytes(a ^ b for a, b in zip(left, right, strict=True))
