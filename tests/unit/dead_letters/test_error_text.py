"""The text of exceptions in messages and dead letters."""

from __future__ import annotations

from headrace.dead_letters.error_text import MAX_MESSAGE, message_of, repr_of


def test_a_long_text_is_cut_after_its_beginning() -> None:
    error = ValueError("x" * 1_000_000)
    assert message_of(error) == "x" * MAX_MESSAGE + "... (1000000 characters)"
    assert repr_of(error).startswith("ValueError('xxx")
    assert len(repr_of(error)) < MAX_MESSAGE + 50
