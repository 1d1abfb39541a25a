"""Made-up SCRAM credentials for users that do not exist, so that a client cannot distinguish them from stored users.

The server sends the salt and the number of iterations to every client that names a user. Tools differ in both: Headrace
makes salts of 24 random bytes, librdkafka of 64 bytes, and Kafka's tools make a number of 130 bits in base 36. A
made-up credential therefore has the form of a stored one. The form is drawn for each name, in the proportion of the
stored forms. The draw and the salt depend only on the name and on a secret of the cluster, so they stay the same. If
one of n stored users is added or removed, the draw changes for one n-th of the names.
"""

from __future__ import annotations

import math
import string
from collections.abc import Sequence
from typing import Final, NamedTuple

from headrace.security.scram import MIN_ITERATIONS, ScramCredential, ScramMechanism

SALT_BYTES: Final = 24
"""The length of the salts that Headrace's own commands and clients make."""
FORMS_LIMIT: Final = 32
"""The greatest number of forms that a draw considers: the most frequent ones."""
_ANY: Final = bytes(range(256))
_BASE_36: Final = (string.digits + string.ascii_lowercase).encode()
_ALPHABETS: Final = tuple(
    alphabet.encode()
    for alphabet in (
        "0123456789abcdef",
        "0123456789ABCDEF",
        _BASE_36.decode(),
        string.digits + string.ascii_letters,
        string.digits + string.ascii_letters + "+/",
    )
)
_KAFKA_BITS: Final = 130
_KAFKA_LENGTHS: Final = (24, 25, 26)
"""The lengths of all salts of Kafka's tools, but for one in 2,000."""
_AS_KAFKA: Final = 0


class Form(NamedTuple):
    """The form of a credential: what a client can see of it, without the salt itself."""

    salt_bytes: int
    """The length of the salt in bytes; 0 for a number of 130 bits in base 36, whose length varies."""
    alphabet: bytes
    """The values that the bytes of the salt can have."""
    iterations: int


USUAL: Final = Form(SALT_BYTES, _ANY, MIN_ITERATIONS)
"""The form if no credential is stored."""

Forms = Sequence[tuple[Form, int]]
"""Forms with the number of credentials of each, which is at least one."""


def form_of(credential: ScramCredential) -> Form:
    """Determine the form of a credential."""
    salt = credential.salt
    alphabet = next((each for each in _ALPHABETS if not salt.translate(None, each)), _ANY)
    size = len(salt)
    if alphabet == _BASE_36 and size in _KAFKA_LENGTHS:
        size = _AS_KAFKA
    return Form(size, alphabet, credential.iterations)


def unknown_user(
    secret: bytes, name: str, mechanism: ScramMechanism, forms: Forms = ((USUAL, 1),)
) -> ScramCredential:
    """Make up the credential of a user that does not exist. It is always the same, and no password matches it.

    Without the secret it cannot be distinguished from a stored credential.

    Args:
        secret: The secret of the cluster.
        name: The name of the user.
        mechanism: The mechanism of the credential.
        forms: The forms of the stored credentials for this mechanism.
    """
    seed = mechanism.hmac(secret, name.encode("utf-8", "surrogatepass"))
    form = _drawn(seed, mechanism, forms)
    return ScramCredential(
        _salt(seed, mechanism, form),
        form.iterations,
        mechanism.hmac(seed, b"stored"),
        mechanism.hmac(seed, b"server"),
    )


def _drawn(seed: bytes, mechanism: ScramMechanism, forms: Forms) -> Form:
    """Draw a form in proportion to the counts. A small change of the counts changes few draws.

    Each form gets an exponential waiting time with its count as the rate. The form with the shortest time wins.
    """

    def waiting(entry: tuple[Form, int]) -> float:
        form, count = entry
        drawn = int.from_bytes(mechanism.hmac(seed, b"form" + repr(form).encode())[:8])
        return -math.log((drawn + 1) / 2**64) / count

    return min(forms, key=waiting)[0]


def _salt(seed: bytes, mechanism: ScramMechanism, form: Form) -> bytes:
    """Make up a salt. Salts of different forms have no part in common."""
    label = b"salt" + repr(form).encode()
    if form.salt_bytes == _AS_KAFKA:
        number = int.from_bytes(_stream(seed, mechanism, label, 32)) >> (256 - _KAFKA_BITS)
        return _digits(number)
    if form.alphabet == _ANY:
        return _stream(seed, mechanism, label, form.salt_bytes)
    pairs = _stream(seed, mechanism, label, 4 * form.salt_bytes)
    return bytes(
        form.alphabet[int.from_bytes(pairs[at : at + 4]) % len(form.alphabet)]
        for at in range(0, len(pairs), 4)
    )


def _digits(number: int) -> bytes:
    digits = bytearray()
    while number or not digits:
        number, digit = divmod(number, 36)
        digits.append(_BASE_36[digit])
    return bytes(reversed(digits))


def _stream(seed: bytes, mechanism: ScramMechanism, label: bytes, size: int) -> bytes:
    parts = bytearray()
    while len(parts) < size:
        parts += mechanism.hmac(seed, label + len(parts).to_bytes(4))
    return bytes(parts[:size])
