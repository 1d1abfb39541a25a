"""Check docstrings, comments, messages, names and Markdown against the prose rules of CONTRIBUTING.md.

    python tools/check_prose.py                      the number of problems in each directory
    python tools/check_prose.py src/headrace/cli     every problem below a directory, or in a file

`tests/unit/test_tidy.py` runs the same check. Files without a problem are remembered in `.cache/prose`, and are read
again when they change.
"""

from __future__ import annotations

import ast
import hashlib
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
CLEAN = ROOT / ".cache" / "prose"
"""The hashes of the files in which the present rules have found no problem."""
MARKDOWN_LINE_LIMIT = 160
LEAST_WORDS = 4

CHECKED = ("*.py", "*.md", "*.c", "*.h", "Makefile", "*.toml", "*.yml")
"""Patterns of the files that are checked."""

UNCHECKED = (
    "src/headrace/protocol/messages/",
    "benchmarks/results/",
    "docs/reference/settings",
    "docs/reference/cli.md",
    "docs/reference/python-api.md",
    "tools/import_schemas.py",
    "tools/check_prose.py",
    "tools/generate_messages.py",
    "tools/message_decoder.py",
    "CONTRIBUTING.md",
)
"""Prefixes of unchecked paths: generated files and their generators, Kafka's names, files that quote banned words."""

FRAGMENT = re.compile(
    r"(Of|Those|That|What|Why|Who|Whose|By|From|In which|Likewise|As|The same|The one|The ones"
    r"|How|Where|When|Which|Since|Its|Makes|Within|Counted|Taken|After|Until|Before|Is|On|But"
    r"|So|Also|Whatever|For|With|At|About|To)\b"
)
"""The first words of a docstring that is a noun fragment."""

BANNED = {
    r"\bstor(y|ies)\b": "a scenario, or a simulation run",
    r"\bjudge[sd]?\b": "a checker",
    r"\bverdicts?\b": "a result, or an outcome",
    r"\btwins?\b": "the asyncio client, the blocking client",
    r"\bwhoever\b": "name the actor",
    r"\b(told|tells?|telling|hears?|heard)\b": "reports, returns, logs, raises, notifies",
    r"\b(nobody|somebody|anybody)\b": "no client, a member, a program: name the actor",
    r"\brooms?\b": "a package, a module; for memory and disks: space",
    r"\bworlds?\b": "a simulated cluster, a simulated network, a broker in memory",
    r"(?<!dead )(?<!dead-)\bletters?\b(?! case)": "a dead letter; a character",
    r"\bholders?\b": "the owner",
    r"\basks? nobody\b": "without authentication",
    r"\bwho they are\b|\bwho is on (a|the) connection\b": "the authenticated principal",
    r"\bshuts? out\b|\bshutting out\b": "fenced",
    r"\bunder way\b|\bon (its|their) way\b": "in flight, or running",
    r"\blikewise\b": "repeat the fact",
    r"\bbookmarks?\b": "a committed offset",
    r"\bwaiting room\b": "the purgatory",
    r"\bmend(s|ed|ing)?\b": "repair, correct",
    r"\bdelayed records?\b": "a scheduled record",
    r"\bas (it|they) comes?\b": "name the order, or the default settings",
}
"""Patterns of banned words, and what to write instead."""
_BANNED = re.compile(
    "|".join(f"(?P<b{n}>{pattern})" for n, pattern in enumerate(BANNED)), re.IGNORECASE
)
_INSTEAD = list(BANNED.values())


class Problem(NamedTuple):
    """A place in a file that breaks a rule of prose."""

    path: str
    line: int
    text: str
    """What the rule is, with the words in question."""

    @property
    def directory(self) -> str:
        return self.path.rpartition("/")[0] or "."

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.text}"


def problems(*below: str) -> Iterator[Problem]:
    """Yield the problems of all tracked files, or of those below the given directories and files."""
    rules = hashlib.blake2b(Path(__file__).read_bytes()).digest()
    known = set(CLEAN.read_text().split()) if CLEAN.exists() else set[str]()
    clean: set[str] = set()
    for path in _tracked():
        inside = not below or any(f"{path}/".startswith(f"{each.rstrip('/')}/") for each in below)
        if inside and not path.startswith(UNCHECKED):
            content = (ROOT / path).read_bytes()
            digest = hashlib.blake2b(
                rules + path[-3:].encode() + content, digest_size=16
            ).hexdigest()
            found = [] if digest in known else list(_reader(path)(content.decode()))
            if not found:
                clean.add(digest)
            for line, problem in found:
                yield Problem(path, line, problem)
    if not below:
        CLEAN.parent.mkdir(exist_ok=True)
        written = CLEAN.with_suffix(f".{os.getpid()}")
        written.write_text("\n".join(sorted(clean)))
        written.replace(CLEAN)


def _tracked() -> list[str]:
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    listing = subprocess.run(
        [*command, *CHECKED], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return [path for path in sorted(listing.stdout.splitlines()) if (ROOT / path).is_file()]


def _reader(path: str) -> Callable[[str], Iterator[tuple[int, str]]]:
    """Return the function that finds the problems in a file of this kind."""
    if path.endswith(".py"):
        return _in_python
    return _in_markdown if path.endswith(".md") else _in_lines


def _in_lines(text: str) -> Iterator[tuple[int, str]]:
    for number, line in enumerate(text.splitlines(), 1):
        yield from _banned(line, number)


def _in_python(source: str) -> Iterator[tuple[int, str]]:
    tree = ast.parse(source)
    for line, docstring in _docstrings(tree):
        yield from _of_docstring(line, docstring)
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value:
            yield from _banned(node.value, node.lineno)
        elif isinstance(node, _FUNCTIONS) and node.name.startswith("test_"):
            yield from _banned(node.name.replace("_", " "), node.lineno)
        elif isinstance(node, ast.ClassDef):
            yield from _banned(_CAPITAL.sub(" ", node.name), node.lineno)
    for number, text in enumerate(source.splitlines(), 1):
        if "# " in text and (comment := re.search(r"(?:^\s*|\s\s)# (.*)", text)):
            yield from _banned(comment[1], number)


def _docstrings(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield the line and text of each string that stands alone: docstrings, and those of attributes."""
    bodies: list[list[ast.stmt]] = [tree.body]
    while bodies:
        for statement in bodies.pop():
            if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
                text = statement.value.value
                if isinstance(text, str):
                    yield statement.lineno, text
            bodies.extend(getattr(statement, name, []) for name in _BLOCKS)


_CAPITAL = re.compile(r"(?<=[a-z])(?=[A-Z])")
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_BLOCKS = ("body", "orelse", "finalbody", "handlers", "cases")


def _of_docstring(line: int, text: str) -> Iterator[tuple[int, str]]:
    words = text.split()
    if len(words) < LEAST_WORDS:
        yield line, f"a docstring of fewer than {LEAST_WORDS} words: {' '.join(words)!r}"
    elif FRAGMENT.match(text.lstrip()):
        yield line, f"a docstring that opens with a fragment: {' '.join(words[:6])!r}"


def _banned(text: str, line: int) -> Iterator[tuple[int, str]]:
    for match in _BANNED.finditer(text):
        instead = _INSTEAD[int((match.lastgroup or "b0")[1:])]
        found = line + text.count("\n", 0, match.start())
        yield found, f"{match[0]!r} is not used here; instead: {instead}"


def _in_markdown(text: str) -> Iterator[tuple[int, str]]:
    fenced = measured = False
    for number, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith("```"):
            fenced = not fenced
        elif line.startswith("<!-- measured: "):  # a part that a benchmark writes
            measured = line.startswith("<!-- measured: begin")
        elif not fenced and not measured:
            if len(line) > MARKDOWN_LINE_LIMIT and not line.lstrip().startswith("|"):
                yield number, f"{len(line)} characters, the limit is {MARKDOWN_LINE_LIMIT}"
            yield from _banned(re.sub(r"`[^`]*`", "", line), number)


def main(arguments: list[str]) -> int:
    """Print problems, or their number in each directory; return the exit code."""
    found = list(problems(*arguments))
    if arguments:
        print("\n".join(map(str, found)))
    else:
        for directory, count in sorted(Counter(problem.directory for problem in found).items()):
            print(f"{count:6}  {directory}")
        print(f"{len(found):6}  in all")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
