"""Completion in bash of words with a colon: HOST:PORT, and names of groups.

Bash splits a line at colons before it asks for completions, so that click takes `-b HOST:PORT` for three arguments.
This script hands the line over as it was typed.
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
    """What bash runs when its user presses the Tab key."""

    source_template = _SCRIPT
    _before = ""
    """How the word begins, as far as bash takes it for words of their own."""

    def get_completion_args(self) -> tuple[list[str], str]:
        """Return the arguments before the word that is completed, and that word."""
        line = os.environ["COMP_LINE"]
        words = split_arg_string(line)
        incomplete = "" if line[-1:].isspace() or not words else words.pop()
        breaks = set(os.environ.get("COMP_BREAKS", "")) - set(" \t\n\"'")
        self._before = incomplete[: max((incomplete.rfind(each) + 1 for each in breaks), default=0)]
        return words[1:], incomplete

    def format_completion(self, item: CompletionItem) -> str:
        """Return a line for the script, without the part of the value that stands on the line as a word of its own."""
        value = str(item.value)
        return f"{item.type},{value.removeprefix(self._before)}"


def register() -> None:
    """Have click use this for bash."""
    add_completion_class(Bash, "bash")
