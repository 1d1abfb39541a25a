"""Reads X.509 certificates (subject and end of validity) and certificate revocation lists (issuer and times).

The module `ssl` returns the certificate of a client in DER. Principals and ACLs need the subject by RFC 2253, as Kafka
writes it. OpenSSL has verified the certificates of clients before. The other certificates are those of the broker.
"""

from __future__ import annotations

import calendar
from collections.abc import Iterator
from typing import Final, NamedTuple

_SEQUENCE: Final = 0x30
_OBJECT_ID: Final = 0x06
_INTEGER: Final = 0x02
_VERSION: Final = 0xA0
_UTC_TIME: Final = 0x17
_GENERALIZED_TIME: Final = 0x18
_LONG: Final = 0x80
_UTC_TIME_DIGITS: Final = 12

_KEYWORDS: Final = {
    "2.5.4.3": "CN",
    "2.5.4.6": "C",
    "2.5.4.7": "L",
    "2.5.4.8": "ST",
    "2.5.4.9": "STREET",
    "2.5.4.10": "O",
    "2.5.4.11": "OU",
    "0.9.2342.19200300.100.1.1": "UID",
    "0.9.2342.19200300.100.1.25": "DC",
}
"""The attributes with a keyword in RFC 2253. Others are written as numbers and hexadecimal digits."""

_ENCODINGS: Final = {
    0x0C: "utf-8",
    0x13: "ascii",  # PrintableString
    0x14: "latin-1",  # T61String
    0x16: "ascii",  # IA5String
    0x1B: "latin-1",  # GeneralString
    0x1C: "utf-32-be",  # UniversalString
    0x1E: "utf-16-be",  # BMPString
}
_ESCAPED: Final = frozenset(',=+<>#;"\\')


class CertificateError(ValueError):
    """The bytes are not a certificate, or the certificate has a form that this module cannot read."""


class Certificate(NamedTuple):
    """The parts of a certificate that the broker uses."""

    subject: str
    """The distinguished name by RFC 2253, as in `CN=alice,OU=readers,O=Example,C=DE`."""
    not_after_s: int
    """The time at which the certificate expires, in seconds since 1970."""


def read_certificate(der: bytes) -> Certificate:
    """Read a certificate.

    Raises:
        CertificateError: The certificate is malformed.
    """
    try:
        (certificate,) = _elements(der)
        to_be_signed = next(_elements(certificate.content))
        fields = [f for f in _elements(to_be_signed.content) if f.tag != _VERSION]
        _serial, _signature, _issuer, validity, subject = fields[:5]
        _, not_after = _elements(validity.content)
        return Certificate(_distinguished_name(subject.content), _seconds(not_after))
    except (ValueError, IndexError, StopIteration) as error:
        raise CertificateError(f"a certificate that cannot be read: {error}") from error


class RevocationList(NamedTuple):
    """The parts of a revocation list that the broker uses."""

    issuer: str
    """The issuer of the certificates that the list revokes, by RFC 2253."""
    this_update_s: int
    """The time at which the list was made, in seconds since 1970."""
    next_update_s: int | None
    """The time at which a newer list is due, in seconds since 1970; None if the list has no such time."""


def read_revocation_list(der: bytes) -> RevocationList:
    """Read the issuer and the times of a revocation list. Its entries are left to OpenSSL.

    Raises:
        CertificateError: The list is malformed.
    """
    try:
        (whole,) = _elements(der)
        fields = _elements(next(_elements(whole.content)).content)
        first = next(fields)
        if first.tag == _INTEGER:  # the version, which version 1 omits
            next(fields)
        issuer, this_update = next(fields), next(fields)
        following = next(fields, None)
        dated = following is not None and following.tag in {_UTC_TIME, _GENERALIZED_TIME}
        return RevocationList(
            _distinguished_name(issuer.content),
            _seconds(this_update),
            _seconds(following) if dated and following is not None else None,
        )
    except (ValueError, IndexError, StopIteration) as error:
        raise CertificateError(
            f"a list of revoked certificates that cannot be read: {error}"
        ) from error


class _Element(NamedTuple):
    tag: int
    content: bytes
    whole: bytes


def _elements(data: bytes) -> Iterator[_Element]:
    """Yield the elements of DER bytes in order."""
    at = 0
    while at < len(data):
        tag, size, start = data[at], data[at + 1], at + 2
        if size >= _LONG:
            digits = size - _LONG
            size = int.from_bytes(data[start : start + digits])
            start += digits
        end = start + size
        if end > len(data):
            raise CertificateError("an element is longer than what holds it")
        yield _Element(tag, data[start:end], data[at:end])
        at = end


def _seconds(time: _Element) -> int:
    digits = time.content.decode("ascii").removesuffix("Z")
    if time.tag != _GENERALIZED_TIME:
        if len(digits) != _UTC_TIME_DIGITS:
            raise CertificateError(f"{digits[:20]!r} is not a time")
        digits = ("20" if digits < "50" else "19") + digits
    year, rest = int(digits[:4]), digits[4:14]
    month, day, hour, minute, second = (int(rest[at : at + 2]) for at in range(0, 10, 2))
    return calendar.timegm((year, month, day, hour, minute, second))


def _distinguished_name(content: bytes) -> str:
    """Return a name by RFC 2253, which begins with the last part."""
    parts = [
        "+".join(_attribute(attribute.content) for attribute in _elements(part.content))
        for part in _elements(content)
    ]
    return ",".join(reversed(parts))


def _attribute(content: bytes) -> str:
    kind, value = _elements(content)
    if kind.tag != _OBJECT_ID:
        raise CertificateError("an attribute without its type")
    number = _object_id(kind.content)
    keyword, encoding = _KEYWORDS.get(number), _ENCODINGS.get(value.tag)
    if keyword is None or encoding is None:
        return f"{keyword or number}=#{value.whole.hex()}"
    return f"{keyword}={_escaped(value.content.decode(encoding))}"


def _escaped(text: str) -> str:
    marked = "".join(
        f"\\{character}" if character in _ESCAPED else "\\00" if character == "\0" else character
        for character in text
    )
    inner = marked.strip(" \r")
    leading = len(marked) - len(marked.lstrip(" \r"))
    trailing = len(marked) - leading - len(inner)
    spaces = [f"\\{space}" for space in marked]
    return "".join(spaces[:leading]) + inner + "".join(spaces[len(marked) - trailing :])


def _object_id(content: bytes) -> str:
    numbers: list[int] = []
    number = 0
    for byte in content:
        number = number << 7 | byte & 0x7F
        if byte < _LONG:
            numbers.append(number)
            number = 0
    first = min(numbers[0] // 40, 2)
    return ".".join(map(str, (first, numbers[0] - 40 * first, *numbers[1:])))
