"""Lists of revoked certificates (CRLs, RFC 5280), read from files in PEM or DER format.

OpenSSL checks the certificates of clients with these lists. A client is refused if its authority has no list, or if the
list has expired: a certificate must be known to be valid.
"""

from __future__ import annotations

import base64
import re
import ssl
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

from headrace.errors import ConfigError
from headrace.ports import Journal
from headrace.security.certificates import CertificateError, RevocationList, read_revocation_list

OPTION: Final = "headrace.ssl.crl.location"
FILE_BYTES_LIMIT: Final = 32 << 20
WARN_S: Final = 86_400
"""The time before the end of a list at which a warning is logged, in seconds, if the list is valid for longer."""
_PEM: Final = re.compile(rb"-----BEGIN X509 CRL-----(.*?)-----END X509 CRL-----", re.DOTALL)
_DER_START: Final = b"\x30"


class Lists(NamedTuple):
    """The certificate revocation lists in the files."""

    pem: bytes
    lists: Sequence[RevocationList]


def read_lists(locations: Sequence[str]) -> Lists:
    """Read the lists of all files.

    Raises:
        ConfigError: A file cannot be read, is too large, or has no list.
    """
    pem, lists = bytearray(), []
    for location in locations:
        for der in _blocks(location):
            try:
                lists.append(read_revocation_list(der))
            except CertificateError as error:
                raise ConfigError(f"{OPTION}: {location}: {error}") from error
            body = base64.encodebytes(
                der
            )  # by hand, because textwrap takes seconds for a large list
            pem += b"-----BEGIN X509 CRL-----\n" + body + b"-----END X509 CRL-----\n"
    return Lists(bytes(pem), lists)


def _blocks(location: str) -> list[bytes]:
    try:
        with Path(location).open("rb") as file:
            data = file.read(FILE_BYTES_LIMIT + 1)
    except OSError as error:
        raise ConfigError(f"{OPTION}: cannot read {location}: {error.strerror}") from error
    if len(data) > FILE_BYTES_LIMIT:
        raise ConfigError(f"{OPTION}: {location} has more than {FILE_BYTES_LIMIT} bytes")
    if data.startswith(_DER_START):
        return [data]
    try:
        found = [base64.b64decode(body) for body in _PEM.findall(data)]
    except ValueError:
        found = []
    if not found:
        raise ConfigError(
            f"{OPTION}: {location} has no list of revoked certificates (X509 CRL) in PEM or DER format"
        )
    return found


def check_against(context: ssl.SSLContext, path: str) -> None:
    """Make a context check the certificates of clients with the lists in a PEM file.

    Raises:
        ConfigError: OpenSSL cannot use the lists.
    """
    try:
        context.load_verify_locations(cafile=path)
    except ssl.SSLError as error:
        raise ConfigError(f"{OPTION}: the lists cannot be used: {error.reason or error}") from error
    context.verify_flags |= ssl.VERIFY_CRL_CHECK_LEAF


class EndsOfLists:
    """Warns once of each list that ends soon, and once when the list has ended."""

    def __init__(self, listener: str, lists: Sequence[RevocationList], journal: Journal) -> None:
        self._listener = listener
        self._journal = journal
        self._near = [
            each
            for each in lists
            if each.next_update_s is not None and each.next_update_s - each.this_update_s > WARN_S
        ]
        self._over = [each for each in lists if each.next_update_s is not None]

    def look(self, now_s: float) -> None:
        """Log the warnings that are due."""
        for event, waiting, early_s in (
            ("crl_expired", self._over, 0),
            ("crl_expires", self._near, WARN_S),
        ):
            for each in list(waiting):
                end_s = each.next_update_s
                if end_s is None or now_s < end_s - early_s:
                    continue
                waiting.remove(each)
                if event == "crl_expires" and now_s >= end_s:
                    continue  # the end of the list was logged
                self._journal.warning(
                    event,
                    listener=self._listener,
                    issuer=each.issuer,
                    hours=int((end_s - now_s) / 3600),
                    remedy="replace the list with a new one; the broker reads it without a restart. "
                    "Clients of this authority are refused when the list has ended",
                )
