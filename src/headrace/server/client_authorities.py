"""Names the trusted authorities in the CertificateRequest of a TLS server.

A client with several certificates chooses one by these names. Python's `ssl` has no counterpart of OpenSSL's
SSL_CTX_add_client_CA, so this module calls that function directly, on the context inside Python's object. Where the
layout of that object is not known, nothing is called. The request then names no authority, which allows any.
"""

from __future__ import annotations

import contextlib
import ctypes
import ssl
import sys
from collections.abc import Iterable
from typing import Any, Final

_KNOWN: Final = {(3, 11), (3, 12), (3, 13), (3, 14)}
"""Versions of CPython whose context begins with the head of an object and OpenSSL's pointer."""


def can_name() -> bool:
    """Tell whether authorities can be named here."""
    usual = sys.implementation.name == "cpython" and sys.version_info[:2] in _KNOWN
    special = {"d", "t"} & set(
        sys.abiflags
    )  # other heads of objects: with debugging, without the lock
    return usual and not special and _library() is not None


def name_authorities(context: ssl.SSLContext, certificates: Iterable[bytes]) -> None:
    """Name the subjects of certificates, each DER, in the requests that a context makes."""
    if not can_name():
        return
    library = _library()
    pointer = ctypes.c_void_p.from_address(id(context) + object.__basicsize__)
    for der in certificates:
        place = ctypes.c_char_p(der)
        certificate = library.d2i_X509(None, ctypes.byref(place), len(der))
        if certificate:
            library.SSL_CTX_add_client_CA(pointer, certificate)
            library.X509_free(certificate)


def _library() -> Any:
    """Return what Python's own `_ssl` is linked with; None if its functions cannot be found."""
    import _ssl  # noqa: PLC0415 - its place in the file system is all that is used of it

    with contextlib.suppress(OSError, AttributeError):
        library = ctypes.CDLL(_ssl.__file__)
        library.d2i_X509.restype = ctypes.c_void_p
        library.d2i_X509.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_long)
        library.SSL_CTX_add_client_CA.argtypes = (ctypes.c_void_p, ctypes.c_void_p)
        library.X509_free.argtypes = (ctypes.c_void_p,)
        library.X509_free.restype = None
        return library
    return None
