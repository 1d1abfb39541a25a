"""Regular expressions of clients, with bounds on their time.

The expressions are RE2's, because RE2 takes time in proportion to the text for every expression. With Python's `re` a
client could block the broker with a few characters. So expressions are refused without `google-re2`. The time is also
in proportion to the instructions of the compiled expression. So long expressions, and those with many instructions, are
refused, too.
"""

from __future__ import annotations

from typing import Any, Final

from headrace.errors import ApiError, ErrorCode

try:
    import re2
except ImportError:
    re2 = None

INSTALL_RE2: Final = "pip install 'headrace[server]', or google-re2 alone,"
PATTERN_CHARACTERS_LIMIT: Final = 1000
_PATTERN_MEMORY_BYTES: Final = 1 << 18
_PROGRAM_LIMIT: Final = 1000
"""The greatest number of instructions of a compiled expression. Each may be a step for each character of a text."""
_STEPS_LIMIT: Final = 100_000_000
"""The greatest number of steps of an expression for all texts: a second for a hostile expression, spread over time."""
_TEXT_STEPS_LIMIT: Final = 2_000_000
"""The greatest number of steps of an expression for one text, which is matched without a pause: 20 milliseconds."""
_COST: Final = 3
"""The cost of one instruction for one character, in the unit of `Steps`."""


class Expression:
    """A compiled expression, and the number of steps that it has done.

    Args:
        regex: The expression.
        field: The name of the field in the request, for error messages.
        instead: What the client can do if this broker evaluates no expressions.

    Raises:
        ApiError: INVALID_REGULAR_EXPRESSION, with the reason.
    """

    __slots__ = ("_done", "_fullmatch", "_shown", "_size")

    def __init__(self, regex: str, field: str, instead: str) -> None:
        compiled = _compiled(regex, field, instead)
        self._fullmatch = compiled.fullmatch
        self._size: int = max(1, compiled.programsize)
        self._shown = f"{field} `{regex[:300]}`"
        self._done = 0
        self.check(0)

    def check(self, characters: int) -> None:
        """Raise an error if the expression may take too long for texts of so many characters in all.

        Raises:
            ApiError: INVALID_REGULAR_EXPRESSION.
        """
        if self._size > _PROGRAM_LIMIT or self._size * characters > _STEPS_LIMIT:
            self._refuse()

    def cost(self, text: str) -> int:
        """Return the cost of matching a text, in the unit of `Steps`."""
        return self._size * len(text) * _COST

    def matches(self, text: str) -> bool:
        """Return whether the expression matches a text as a whole.

        Raises:
            ApiError: INVALID_REGULAR_EXPRESSION: the text is too long for this expression, or all texts are.
        """
        steps = self._size * len(text)
        self._done += steps
        if steps > _TEXT_STEPS_LIMIT or self._done > _STEPS_LIMIT:
            self._refuse()
        return bool(self._fullmatch(text))

    def _refuse(self) -> None:
        raise ApiError(
            ErrorCode.INVALID_REGULAR_EXPRESSION,
            f"{self._shown} takes too long to match: use fewer repetitions with counts",
        )


def are_evaluated() -> bool:
    """Return whether this broker can evaluate regular expressions."""
    return re2 is not None


def _compiled(regex: str, field: str, instead: str) -> Any:
    if re2 is None:
        raise ApiError(
            ErrorCode.INVALID_REGULAR_EXPRESSION,
            f"this broker cannot evaluate regular expressions: {INSTALL_RE2} where it runs, or {instead}",
        )
    if len(regex) > PATTERN_CHARACTERS_LIMIT:
        raise ApiError(
            ErrorCode.INVALID_REGULAR_EXPRESSION,
            f"{field} is longer than {PATTERN_CHARACTERS_LIMIT} characters",
        )
    options = re2.Options()
    options.max_mem = _PATTERN_MEMORY_BYTES
    options.log_errors = False
    try:
        return re2.compile(regex, options)
    except re2.error as error:
        reason = error.args[0] if error.args else b""
        text = reason.decode(errors="replace") if isinstance(reason, bytes) else str(reason)
        raise ApiError(
            ErrorCode.INVALID_REGULAR_EXPRESSION,
            f"{field} `{regex[:300]}` is not a valid regular expression: {text}.",
        ) from error
