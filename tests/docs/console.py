"""The content of a page: commands with their output, files, and programs."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

TIMEOUT_S = 120


@dataclass
class Step:
    """One step of a page: a command with its output, or a file or program with its text."""

    kind: str
    text: str
    name: str = ""
    shown: list[str] = field(default_factory=list)


def steps(page: str) -> Iterator[Step]:
    """Return the steps of a page, in order. The text before the block of a file names the file."""
    for kind, text, before in _blocks(page):
        if kind != "console":
            [*_, name] = re.findall(r"`([\w.]+\.\w+)`", before) or [""]
            yield Step(kind, text, name)
            continue
        commands: list[Step] = []
        for line in text.splitlines():
            if line.startswith("$ "):
                commands.append(Step(kind, line[2:]))
            else:
                commands[-1].shown.append(line)
        yield from commands


def section(page: str, title: str) -> str:
    """Return a section of a page, from its heading to the next heading."""
    return page.split(f"\n## {title}\n", 1)[1].split("\n## ", 1)[0]


def _blocks(page: str) -> Iterator[tuple[str, str, str]]:
    end = 0
    for match in re.finditer(r"```(\w+)\n(.*?)```", page, re.DOTALL):
        yield match[1], match[2], page[end : match.start()]
        end = match.end()


def users_environment() -> dict[str, str]:
    """Return the environment of a user who has installed the package and set no variable."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    mine = {name: value for name, value in os.environ.items() if not name.startswith("HEADRACE_")}
    return {**mine, "PATH": path}


def run_shell(
    command: str, directory: Path, environment: Mapping[str, str]
) -> subprocess.CompletedProcess[str]:
    """Run a command in a shell, as a user types it."""
    return subprocess.run(
        ["bash", "-uo", "pipefail", "-c", f"umask 077; {command}"],
        cwd=directory,
        env=environment,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
