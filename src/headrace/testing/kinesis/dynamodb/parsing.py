"""Divides expressions of DynamoDB into tokens, and resolves their names and values."""

from __future__ import annotations

import re
from typing import Any, Final, NamedTuple

from headrace.testing.kinesis.dynamodb.reserved import RESERVED
from headrace.testing.kinesis.dynamodb.values import Value, checked, refused
from headrace.testing.kinesis.errors import AwsError

_TOKEN: Final = re.compile(
    r"\s*(?:(?P<name>#[A-Za-z0-9_]+)|(?P<value>:[A-Za-z0-9_]+)|(?P<word>[A-Za-z_][A-Za-z0-9_]*)"
    r"|(?P<sign><=|>=|<>|[=<>(),+\-.\[\]]))",
    re.ASCII,
)
KEYWORDS: Final = frozenset({"AND", "OR", "NOT", "BETWEEN", "IN", "SET", "REMOVE", "ADD", "DELETE"})


class Token(NamedTuple):
    """A token of an expression.

    Attributes:
        kind: `name` (with #), `value` (with :), `word`, `sign`, or `end`.
        text: The text of the token; keywords in upper case.
        at: The index of its first character.
    """

    kind: str
    text: str
    at: int


class Attributes:
    """The names and values of a request. Its expressions share them, and must use each."""

    def __init__(self, request: dict[str, Any]) -> None:
        self._names: dict[str, str] = request.get("ExpressionAttributeNames") or {}
        given: dict[str, Any] = request.get("ExpressionAttributeValues") or {}
        self._values = {name: checked(value) for name, value in given.items()}
        self._used: set[str] = set()

    def name(self, placeholder: str) -> str:
        """Return the attribute of a `#name`."""
        if placeholder not in self._names:
            raise refused(
                "An expression attribute name used in the document path is not defined; "
                f"attribute name: {placeholder}"
            )
        self._used.add(placeholder)
        return self._names[placeholder]

    def value(self, placeholder: str) -> Value:
        """Return the value of a `:value`."""
        if placeholder not in self._values:
            raise refused(
                "An expression attribute value used in expression is not defined; attribute "
                f"value: {placeholder}"
            )
        self._used.add(placeholder)
        return self._values[placeholder]

    def require_all_used(self) -> None:
        """Refuse names and values that no expression has used."""
        for kind, given in (("Names", self._names), ("Values", self._values)):
            unused = sorted(set(given) - self._used)
            if unused:
                raise refused(
                    f"Value provided in ExpressionAttribute{kind} unused in expressions: keys: "
                    f"{{{', '.join(unused)}}}"
                )


class Parser:
    """Reads an expression token by token."""

    def __init__(self, title: str, text: str, attributes: Attributes) -> None:
        """Divide an expression into tokens.

        Args:
            title: The member of the request that contains the expression, for refusals.
            text: The expression.
            attributes: The names and values of the request.
        """
        self._title = title
        self._text = text
        self.attributes = attributes
        if not text.strip():
            raise refused(f"Invalid {title}: The expression can not be empty;")
        self._tokens = self._split()
        self._next = 0

    def _split(self) -> list[Token]:
        tokens = []
        at = 0
        text = self._text.rstrip()
        while at < len(text):
            found = _TOKEN.match(text, at)
            if found is None or found.lastgroup is None:
                raise self._complaint(text[at : at + 1], at)
            piece = found[found.lastgroup]
            keyword = found.lastgroup == "word" and piece.upper() in KEYWORDS
            tokens.append(Token(found.lastgroup, piece.upper() if keyword else piece, at))
            at = found.end()
        return [*tokens, Token("end", "<EOF>", at)]

    @property
    def token(self) -> Token:
        """The next token, which stays next."""
        return self._tokens[self._next]

    def take(self) -> Token:
        """Return the next token and move behind it."""
        token = self.token
        self._next += token.kind != "end"
        return token

    def accept(self, text: str) -> bool:
        """Move behind the next token if it has this text; return whether it has."""
        if self.token.kind in {"word", "sign"} and self.token.text == text:
            self._next += 1
            return True
        return False

    def expect(self, text: str) -> None:
        """Move behind the next token, which must have this text."""
        if not self.accept(text):
            raise self.syntax_error()

    def expect_end(self) -> None:
        """Refuse further tokens behind the expression."""
        if self.token.kind != "end":
            raise self.syntax_error()

    def called(self, *names: str) -> str | None:
        """Return the name of a function call if one is next, and move behind its opening parenthesis."""
        following = self._tokens[min(self._next + 1, len(self._tokens) - 1)]
        if self.token.kind != "word" or following.text != "(":
            return None
        if self.token.text not in names:
            raise refused(
                f"Invalid {self._title}: Invalid function name; function: {self.token.text}"
            )
        self._next += 2
        return self._tokens[self._next - 2].text

    def path(self) -> str:
        """Return the name of an attribute. The fake does not support paths into lists and maps."""
        token = self.take()
        if token.kind == "name":
            name = self.attributes.name(token.text)
        elif token.kind == "word" and token.text not in KEYWORDS:
            name = token.text
            if name.upper() in RESERVED:
                raise refused(
                    f"Invalid {self._title}: Attribute name is a reserved keyword; reserved "
                    f"keyword: {name}"
                )
        else:
            raise self._complaint(token.text, token.at)
        if self.token.text in {".", "["}:
            raise refused(
                f"Invalid {self._title}: the fake does not support paths into lists and maps"
            )
        return name

    def syntax_error(self) -> AwsError:
        """Return the refusal of the next token."""
        return self._complaint(self.token.text, self.token.at)

    def _complaint(self, token: str, at: int) -> AwsError:
        near = self._text[max(0, at - 10) : at + 10].strip()
        return refused(f'Invalid {self._title}: Syntax error; token: "{token}", near: "{near}"')
