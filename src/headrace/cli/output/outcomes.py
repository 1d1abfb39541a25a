"""The outcomes of changes: a row for each changed thing, and exit code 1 if one failed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from headrace.cli.output.printing import print_json, print_table, say

if TYPE_CHECKING:
    from headrace.errors import ApiError


def print_outcomes(
    kind: str,
    outcomes: Mapping[str, ApiError | None],
    done: str | Mapping[str, str],
    *,
    as_json: bool,
    facts: Mapping[str, Mapping[str, object]] | None = None,
) -> None:
    """Print one row for each name.

    Args:
        kind: The kind of the names, such as "topic" or "group".
        outcomes: For each name None, or its error.
        done: The word for success, or a word for each name.
        as_json: Whether to print JSON.
        facts: Further fields of each name in JSON.

    Raises:
        SystemExit: With code 1, if a name has an error.
    """
    words = dict.fromkeys(outcomes, done) if isinstance(done, str) else done
    if as_json:
        print_json(
            [
                {
                    kind: name,
                    "status": words[name] if error is None else "failed",
                    "error": None if error is None else error.code.name,
                    "message": None if error is None else error.message,
                    **(facts or {}).get(name, {}),
                }
                for name, error in outcomes.items()
            ]
        )
    else:
        rows = [
            (name, words[name] if error is None else error.code.name)
            for name, error in outcomes.items()
        ]
        print_table((kind.upper(), "STATUS"), rows)
        for error in filter(None, outcomes.values()):
            say(f"Error: {error.message}")
    if any(outcomes.values()):
        raise SystemExit(1)
