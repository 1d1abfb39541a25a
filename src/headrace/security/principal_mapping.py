"""`ssl.principal.mapping.rules`: the principal's name from the subject of a client's certificate.

The administrator writes the rules, but an authority may sign any subject. A regular expression can take very long for a
text that was made for it. So the length of a subject is limited, and nested free repetitions are refused, because they
make a search exponential.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from re import _constants, _parser  # type: ignore[attr-defined]  # the only way to see the parts of a pattern
from typing import Any, Final, NamedTuple

from headrace.errors import ConfigError

SUBJECT_LIMIT: Final = 512
"""The length of the longest subject that is matched, in characters. The subjects that X.520 recommends are shorter."""

_RULE: Final = re.compile(
    r"\s*(?:(?P<default>DEFAULT)|RULE:(?P<pattern>(?:\\.|[^\\/])*)/(?P<name>(?:\\.|[^\\/])*)/(?P<case>[LU]?))\s*(?:,|$)"
)
_REFERENCE: Final = re.compile(r"\$(\d)|\\(.)")
_FEW: Final = 16
"""The number of repetitions up to which a repetition does not count as free."""
_REPETITIONS: Final = 10
"""The greatest number of free repetitions in a pattern. Each multiplies the time of a search."""


class MappingError(Exception):
    """No name can be derived from a subject."""


class _Rule(NamedTuple):
    pattern: re.Pattern[str]
    name: str
    case: str


class PrincipalMapping:
    """The parsed rules of `ssl.principal.mapping.rules`."""

    __slots__ = ("_rules",)

    def __init__(self, text: str) -> None:
        """Parse the rules.

        Raises:
            ConfigError: A rule is malformed.
        """
        self._rules: Sequence[_Rule | None] = [*_read_rules(text)]

    def name_of(self, subject: str) -> str:
        """Return the name that the first matching rule derives. A rule has to match the whole subject.

        Raises:
            MappingError: The subject is empty or too long, or no rule matches it.
        """
        if len(subject) > SUBJECT_LIMIT:
            raise MappingError(f"a subject of {len(subject)} characters; allowed: {SUBJECT_LIMIT}")
        if not subject:
            raise MappingError("the certificate has no subject")
        for rule in self._rules:
            if rule is None:
                return subject
            match = rule.pattern.fullmatch(subject)
            if match is not None:
                return _name(rule, match)
        raise MappingError(f"no rule of ssl.principal.mapping.rules matches {subject!r}")


def _name(rule: _Rule, match: re.Match[str]) -> str:
    name = _REFERENCE.sub(lambda found: _expanded(found, match), rule.name)
    if not name:
        raise MappingError(f"the rule that matches {match[0]!r} leaves no name")
    return {"L": name.lower(), "U": name.upper()}.get(rule.case, name)


def _expanded(found: re.Match[str], match: re.Match[str]) -> str:
    if found[2] is not None:
        return found[2]
    group = int(found[1])
    return match[group] or "" if group <= match.re.groups else found[0]


def _read_rules(text: str) -> Iterable[_Rule | None]:
    at = 0
    while at < len(text):
        found = _RULE.match(text, at)
        if found is None:
            raise ConfigError(
                f"ssl.principal.mapping.rules: {text[at : at + 80]!r}: expected RULE:pattern/replacement/[LU] or "
                "DEFAULT, with commas between"
            )
        rule = found["pattern"], found["name"], found["case"]
        yield None if found["default"] else _Rule(_compiled(rule[0]), *rule[1:])
        at = found.end()
    if not text.strip():
        yield None


def _compiled(pattern: str) -> re.Pattern[str]:
    # Java writes a named group without the P
    ours = re.sub(r"\(\?<(?=[A-Za-z])", "(?P<", pattern)
    try:
        parsed = _parser.parse(ours)
        free = _has_nested_repetition(parsed) or _has_neighbours(parsed)
        compiled = re.compile(ours)
    except (re.error, OverflowError, RecursionError) as error:
        raise ConfigError(
            f"ssl.principal.mapping.rules: {pattern[:80]!r} is no regular expression: {error}"
        ) from None
    if free:
        raise ConfigError(
            f"ssl.principal.mapping.rules: {pattern[:80]!r}: repetitions within repetitions, as in (a+)+, or behind "
            f"one another, as in .*.*.*, or more than {_REPETITIONS} can take for ever on a certificate made for it; "
            "write it with fewer"
        )
    return compiled


def _has_nested_repetition(parsed: Iterable[tuple[Any, Any]], *, within: bool = False) -> bool:
    """Return whether a free repetition contains another one.

    `parsed` is the form of a pattern that Python's compiler uses.
    """
    for operation, argument in parsed:
        free = within
        if operation in {_constants.MAX_REPEAT, _constants.MIN_REPEAT} and argument[1] > _FEW:
            if within:
                return True
            free = True
        if any(_has_nested_repetition(part, within=free) for part in _parts(argument)):
            return True
    return False


def _has_neighbours(parsed: Iterable[tuple[Any, Any]]) -> bool:
    """Return whether three free repetitions are adjacent, or there are too many of them."""
    found = [*_repetitions(parsed)]
    return sum(found) > _REPETITIONS or any(all(found[at : at + 3]) for at in range(len(found) - 2))


def _repetitions(parsed: Iterable[tuple[Any, Any]]) -> Iterator[bool]:
    """Yield True for each free repetition, and False for each element that matches a character."""
    for operation, argument in parsed:
        if operation in {_constants.MAX_REPEAT, _constants.MIN_REPEAT}:
            if argument[1] > _FEW:
                yield True
            else:
                # The element may be missing in a match: only its repetitions count.
                yield from (one for one in _repetitions(argument[2]) if one or argument[0])
        elif operation is _constants.SUBPATTERN:
            yield from _repetitions(argument[3])
        elif operation is _constants.BRANCH:
            yield from (one for part in argument[1] for one in _repetitions(part) if one)
        elif operation not in {_constants.AT, _constants.ASSERT, _constants.ASSERT_NOT}:
            yield False


def _parts(argument: Any) -> Iterable[Any]:
    """Yield the patterns in the argument of an operation."""
    if isinstance(argument, _parser.SubPattern):
        yield argument
    elif isinstance(argument, (tuple, list)):
        for part in argument:
            yield from _parts(part)
