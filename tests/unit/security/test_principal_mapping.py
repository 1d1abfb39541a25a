"""Names from certificates: subjects as Kafka writes them, and the rules that derive names."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.x509.name import _ASN1Type
from cryptography.x509.oid import NameOID
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import ConfigError
from headrace.security.certificates import CertificateError, read_certificate
from headrace.security.principal_mapping import SUBJECT_LIMIT, MappingError, PrincipalMapping
from tests.fixtures.certificates import Authority

DOCUMENTED = (
    "RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/,"
    "RULE:^CN=(.*?),OU=(.*?),O=(.*?),L=(.*?),ST=(.*?),C=(.*?)$/$1@$2/L,"
    "RULE:^.*[Cc][Nn]=([a-zA-Z0-9.]*).*$/$1/L,"
    "DEFAULT"
)


@pytest.mark.parametrize(
    ("subject", "name"),
    [
        ("CN=serviceuser,OU=ServiceUsers,O=Unknown,L=Unknown,ST=Unknown,C=Unknown", "serviceuser"),
        ("CN=adminUser,OU=Admin,O=Unknown,L=Unknown,ST=Unknown,C=Unknown", "adminuser@admin"),
        ("O=Unknown,cn=Some.One,L=here", "some.one"),
        ("O=Unknown", "O=Unknown"),
    ],
)
def test_the_rules_of_kafkas_documentation(subject: str, name: str) -> None:
    assert PrincipalMapping(DOCUMENTED).name_of(subject) == name


@pytest.mark.parametrize(
    ("rules", "subject", "name"),
    [
        ("", "CN=a", "CN=a"),
        (" DEFAULT ", "CN=a", "CN=a"),
        (r"RULE:^CN=(.*),O=(.*)$/$2\/$1/U", "CN=a,O=b", "B/A"),
        (r"RULE:^CN=(\d+)\/x$/$1$9/", "CN=12/x", "12$9"),
        ("RULE:^CN=(?<who>[a-z]{1,8})(,.*)?$/$1/", "CN=a", "a"),
    ],
)
def test_rules_in_other_shapes(rules: str, subject: str, name: str) -> None:
    assert PrincipalMapping(rules).name_of(subject) == name


@pytest.mark.parametrize(
    "rules",
    ["RULE:", "RULE:a/b", "RULE:a/b/X", "default", "DEFAULT;DEFAULT", "RULE:(/b/", "RULE:(a+)+$/b/",
     "RULE:^(CN=(.*),)*$/$1/", "RULE:((a|b)*c)*?/d/"],
)  # fmt: skip
def test_malformed_or_dangerous_rules_are_refused(rules: str) -> None:
    with pytest.raises(ConfigError, match=r"ssl\.principal\.mapping\.rules"):
        PrincipalMapping(rules)


def test_a_subject_must_match_and_leave_a_name() -> None:
    for rules in ("RULE:^CN=bob$/bob/", "RULE:^CN=(z?).*$/$1/"):
        with pytest.raises(MappingError):
            PrincipalMapping(rules).name_of("CN=alic")
    with pytest.raises(MappingError, match="allowed: 512"):
        PrincipalMapping("DEFAULT").name_of("CN=" + "a" * SUBJECT_LIMIT)


def test_a_certificate_without_a_subject_has_no_name() -> None:
    for rules in ("", "DEFAULT", "RULE:.*/everybody/"):
        with pytest.raises(MappingError, match="no subject"):
            PrincipalMapping(rules).name_of("")


def test_a_certificate_made_for_it_does_not_take_long() -> None:
    mapping = PrincipalMapping(DOCUMENTED.removesuffix(",DEFAULT"))
    subject = ("CN=x" + ",OU=,O=,L=,ST=" * 40)[:SUBJECT_LIMIT]
    began = time.process_time()
    mapping.name_of(subject)  # the last rule matches, after all others have been tried
    assert time.process_time() - began < 2


def subject_of(directory: Path, *attributes: x509.NameAttribute) -> str:
    pair = Authority(directory).issue("some", x509.Name(list(attributes)))
    return read_certificate(pair.der).subject


def test_subjects_are_printed_as_java_does(tmp_path: Path) -> None:
    name = x509.NameAttribute
    assert subject_of(
        tmp_path,
        name(NameOID.COUNTRY_NAME, "DE"),
        name(NameOID.DOMAIN_COMPONENT, "example", _type=_ASN1Type.IA5String),
        name(NameOID.ORGANIZATION_NAME, 'A "B", C+D; <E>#=F\\'),
        name(NameOID.COMMON_NAME, " Zoë "),
        name(NameOID.USER_ID, "z1"),
    ) == (
        r"UID=z1,CN=\ Zoë\ ,O=A \"B\"\, C\+D\; \<E\>\#\=F\\,DC=example,C=DE"
    )  # fmt: skip


def test_attributes_without_a_word_are_numbers_and_digits(tmp_path: Path) -> None:
    email = x509.NameAttribute(NameOID.EMAIL_ADDRESS, "a@b")
    assert subject_of(tmp_path, email) == "1.2.840.113549.1.9.1=#1603614062"


def test_several_attributes_in_one_part(tmp_path: Path) -> None:
    part = x509.RelativeDistinguishedName(
        [x509.NameAttribute(NameOID.COMMON_NAME, "a"), x509.NameAttribute(NameOID.USER_ID, "b")]
    )
    pair = Authority(tmp_path).issue("some", x509.Name([part]))
    assert read_certificate(pair.der).subject in {"CN=a+UID=b", "UID=b+CN=a"}


def test_a_certificate_has_its_time_of_expiry(tmp_path: Path) -> None:
    pair = Authority(tmp_path).issue("some", days=(-1, 2))
    left_s = read_certificate(pair.der).not_after_s - time.time()
    assert 2 * 86_400 - 60 < left_s <= 2 * 86_400


@given(st.binary(max_size=200), st.integers(0, 300), st.integers(0, 255))
def test_invalid_certificates_raise_certificate_error(junk: bytes, at: int, byte: int) -> None:
    for der in (junk, _GOOD[:at], _GOOD[:at] + bytes([byte]) + _GOOD[at + 1 :]):
        try:
            read_certificate(der)
        except CertificateError:
            continue


_GOOD = b""


@pytest.fixture(scope="module", autouse=True)
def _good(tmp_path_factory: pytest.TempPathFactory) -> None:
    global _GOOD  # noqa: PLW0603 - Hypothesis takes no fixtures of a module's scope
    _GOOD = Authority(tmp_path_factory.mktemp("authority")).issue("some").der
