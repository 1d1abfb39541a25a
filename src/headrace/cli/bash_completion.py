"""Completion in bash of words with a colon, such as HOST:PORT and names of groups.

Bash splits a line at colons before it asks for completions, so that click sees `-b HOST:PORT` as several arguments.
The script here passes the line on as it was typed.
"""

from __future__ import annotations

import os
from typing import Final

from click.shell_completion import (
    BashComplete,
    CompletionItem,
    add_completion_class,
    split_arg_string,
)

_SCRIPT: Final = """\
%(complete_func)s() {
    local IFS=$'\\n' response completion type value
    response=$(env COMP_LINE="${COMP_LINE:0:COMP_POINT}" COMP_BREAKS="$COMP_WORDBREAKS" \\
        %(complete_var)s=bash_complete $1 2>/dev/null)
    COMPREPLY=()
    for completion in $response; do
        IFS=',' read -r type value <<< "$completion"
        case $type in
            dir) compopt -o dirnames ;;
            file) compopt -o default ;;
            *) COMPREPLY+=("$value") ;;
        esac
    done
    return 0
}

complete -o nosort -F %(complete_func)s %(prog_name)s
"""


class Bash(BashComplete):
    """Completion for bash, by click's interface."""

    source_template = _SCRIPT
    _before = ""
    """The beginning of the incomplete word that bash treats as separate words."""

    def get_completion_args(self) -> tuple[list[str], str]:
        """Return the arguments before the word that is completed, and that word."""
        line = os.environ["COMP_LINE"]
        words = split_arg_string(line)
        incomplete = "" if line[-1:].isspace() or not words else words.pop()
        breaks = set(os.environ.get("COMP_BREAKS", "")) - set(" \t\n\"'")
        self._before = incomplete[: max((incomplete.rfind(each) + 1 for each in breaks), default=0)]
        return words[1:], incomplete

    def format_completion(self, item: CompletionItem) -> str:
        """Return a line for the script, without the beginning that bash treats as separate words."""
        value = str(item.value)
        return f"{item.type},{value.removeprefix(self._before)}"


def register() -> None:
    """Register this completion with click."""
    add_completion_class(Bash, "bash")
