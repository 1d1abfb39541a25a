"""A client cannot distinguish users that do not exist from existing ones."""

from __future__ import annotations

from collections import Counter

import pytest

from headrace.security.scram import MAX_ITERATIONS, ScramCredential, ScramMechanism
from headrace.security.unknown_users import USUAL, Form, form_of, unknown_user

SHA_256 = ScramMechanism.SHA_256
BASE_36 = b"0123456789abcdefghijklmnopqrstuvwxyz"
NAMES = [f"user-{number}" for number in range(300)]


def stored(salt, iterations=4096):
    return ScramCredential(salt, iterations, b"k" * 32, b"k" * 32)


def made_up(names, *credentials):
    forms = list(Counter(map(form_of, credentials)).items())
    return [unknown_user(b"secret", name, SHA_256, forms) for name in names]


def kafka_salt(number):
    """Return a salt as `ScramFormatter.secureRandomBytes` makes it from a random number of 130 bits."""
    digits = b""
    while number:
        number, digit = divmod(number, 36)
        digits = BASE_36[digit : digit + 1] + digits
    return digits


@pytest.mark.parametrize(
    "salt",
    [
        pytest.param(bytes(range(100, 124)), id="Headrace, kafka-python"),
        pytest.param(bytes(range(100, 164)), id="librdkafka"),
        pytest.param(b"0f" * 16, id="hexadecimal"),
        pytest.param(b"0F" * 16, id="hexadecimal, upper case"),
        pytest.param(b"0Fz" * 6, id="characters and digits"),
        pytest.param(b"0Fz+" * 6, id="base64"),
    ],
)
def test_a_salt_is_of_the_length_and_the_characters_of_stored_ones(salt):
    form = form_of(stored(salt))
    for found in made_up(NAMES[:20], stored(salt)):
        assert len(found.salt) == len(salt)
        assert set(found.salt) <= set(form.alphabet)
        assert set(salt) <= set(form.alphabet)
    assert form.alphabet == bytes(range(256)) or len(form.alphabet) <= 64


def test_a_salt_of_kafkas_tools_is_a_number_of_130_bits():
    known = [stored(kafka_salt(1 << 129)), stored(kafka_salt(12345 << 114))]
    found = [each.salt for each in made_up(NAMES, *known)]
    assert {25, 26} <= {len(salt) for salt in found} <= set(range(20, 27))
    assert all(int(salt, 36) < 1 << 130 for salt in found)
    assert all(salt == kafka_salt(int(salt, 36)) for salt in found)
    # Of 26 digits the first is always 1: any other digit would mean more bits.
    assert {salt[:1] for salt in found if len(salt) == 26} == {b"1"}


def test_the_forms_are_drawn_as_often_as_they_are_stored():
    known = [stored(b"\xff" * 24)] * 3 + [stored(b"\xff" * 64, MAX_ITERATIONS)]
    found = Counter((len(each.salt), each.iterations) for each in made_up(NAMES, *known))
    assert set(found) == {(24, 4096), (64, MAX_ITERATIONS)}
    assert 45 < found[64, MAX_ITERATIONS] < 105  # a quarter of 300


def test_a_name_keeps_its_salt_when_other_users_change():
    known = [stored(b"\xff" * 24)] * 50 + [stored(b"\xff" * 64)] * 50
    before = made_up(NAMES, *known)
    assert before == made_up(NAMES, *known)
    assert before == made_up(NAMES, *reversed(known))
    after = made_up(NAMES, *known, stored(b"\xff" * 24))
    changed = [(old, new) for old, new in zip(before, after, strict=True) if old != new]
    assert len(changed) <= 10
    # No salt is an extension of another one: that would show that it is made up.
    assert not any(old.salt[:4] == new.salt[:4] for old, new in changed)


def test_without_stored_users_an_unknown_user_has_the_usual_salt_and_iterations():
    found = unknown_user(b"secret", "bob", SHA_256)
    assert form_of(found) == USUAL == Form(24, bytes(range(256)), 4096)


def test_names_and_secrets_make_the_difference():
    found = unknown_user(b"secret", "bob", SHA_256)
    assert found == unknown_user(b"secret", "bob", SHA_256)
    assert found.salt != unknown_user(b"secret", "rob", SHA_256).salt
    assert found.salt != unknown_user(b"other", "bob", SHA_256).salt
    assert found.salt != unknown_user(b"secret", "bob", ScramMechanism.SHA_512).salt
    assert [len(key) for key in found[2:]] == [32, 32]
