"""Names the trusted authorities in the CertificateRequest of a TLS server.

A client with several certificates chooses one by these names. Python's `ssl` does not offer OpenSSL's function
SSL_CTX_add_client_CA. So this module calls the function directly, with the pointer inside Python's context object. If
the layout of that object is unknown, the module does nothing. The request then names no authority, which means that any
authority is acceptable.
"""

from __future__ import annotations

import contextlib
import ctypes
import ssl
import sys
from collections.abc import Iterable
from typing import Any, Final

_KNOWN: Final = {(3, 11), (3, 12), (3, 13), (3, 14)}
"""The versions of CPython whose context object begins with an object header and OpenSSL's pointer."""


def can_name() -> bool:
    """Return whether this interpreter can name authorities."""
    usual = sys.implementation.name == "cpython" and sys.version_info[:2] in _KNOWN
    special = {"d", "t"} & set(
        sys.abiflags
    )  # builds for debugging or without the GIL have other object headers
    return usual and not special and _library() is not None


def name_authorities(context: ssl.SSLContext, certificates: Iterable[bytes]) -> None:
    """Name the subjects of certificates (each in DER) in the requests of a context."""
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
    """Return the library to which Python's own `_ssl` is linked; None if its functions cannot be found."""
    import _ssl  # noqa: PLC0415 - only the path of the file is needed

    with contextlib.suppress(OSError, AttributeError):
        library = ctypes.CDLL(_ssl.__file__)
        library.d2i_X509.restype = ctypes.c_void_p
        library.d2i_X509.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_long)
        library.SSL_CTX_add_client_CA.argtypes = (ctypes.c_void_p, ctypes.c_void_p)
        library.X509_free.argtypes = (ctypes.c_void_p,)
        library.X509_free.restype = None
        return library
    return None
