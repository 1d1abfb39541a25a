"""SASLprep (RFC 4013): a normal form of names and passwords.

Kafka, librdkafka and most other clients do not prepare passwords: they hash the bytes that the user typed. A password
that SASLprep does not change has the same bytes in all clients. Headrace makes credentials of such passwords only.
"""

from __future__ import annotations

import stringprep
import unicodedata
from typing import Final

from headrace.security.mechanisms import SaslError

_PROHIBITED: Final = (
    stringprep.in_table_c12,  # spaces that are not ASCII
    stringprep.in_table_c21_c22,  # control characters
    stringprep.in_table_c3,  # private use
    stringprep.in_table_c4,  # no characters
    stringprep.in_table_c5,  # surrogates
    stringprep.in_table_c6,  # not for plain text
    stringprep.in_table_c7,  # not for canonical representation
    stringprep.in_table_c8,  # change how text is shown
    stringprep.in_table_c9,  # tags
    stringprep.in_table_a1,  # not assigned in Unicode 3.2
)


def saslprep(text: str) -> str:
    """Return the normal form of a text.

    Raises:
        SaslError: The text has characters that are not allowed. The message does not contain them.
    """
    mapped = "".join(
        " " if stringprep.in_table_c12(char) else char
        for char in text
        if not stringprep.in_table_b1(char)
    )
    prepared = unicodedata.normalize("NFKC", mapped)
    if any(prohibited(char) for char in prepared for prohibited in _PROHIBITED):
        raise SaslError("a character that names and passwords must not have (RFC 4013)")
    _check_directions(prepared)
    return prepared


def _check_directions(text: str) -> None:
    """Refuse a mixture of writing directions (RFC 3454, section 6)."""
    if not any(map(stringprep.in_table_d1, text)):
        return
    ends = stringprep.in_table_d1(text[0]) and stringprep.in_table_d1(text[-1])
    if not ends or any(map(stringprep.in_table_d2, text)):
        raise SaslError("left-to-right and right-to-left characters in one name or password")
