"""Write `docs/reference/protocol-support.md` from the handlers and their docstrings; `--check` only compares."""

from __future__ import annotations

import difflib
import re
import sys
import textwrap
from pathlib import Path
from types import ModuleType

from headrace.broker.access.authorization_rules import RULES
from headrace.broker.handlers import REGISTRY
from headrace.protocol.api_keys import ApiKey

TARGET = Path(__file__).resolve().parent.parent / "docs" / "reference" / "protocol-support.md"
WIDTH = 118
SECTIONS = ("Behaviour", "Not implemented", "Versions")
HEAD = """\
# Protocol support

What the broker speaks of Kafka's protocol. Generated from the handlers by `tools/generate_protocol_support.py`: change
their docstrings, not this file. An API or a version that is not listed is not advertised; a request for it closes the
connection, except that ApiVersions of any version is answered.

| key | API | advertised | served |
|---|---|---|---|
"""


RIGHTS = """\
## Who may do what

With an authorizer (`authorizer.class.name`) each API asks whether the client has these rights. A row that begins with
"or" counts where the one before it is missing.

| API | operation | resource | which | without it |
|---|---|---|---|---|
"""


def api_name(module: ModuleType) -> str:
    """Return Kafka's name of a module's API."""
    return "".join(part.capitalize() for part in ApiKey(module.API_KEY).name.split("_"))


def sections_of(module: ModuleType) -> dict[str, str]:
    """Return the labelled paragraphs of a module's docstring, each on one line."""
    found: dict[str, list[str]] = {}
    current: list[str] = []
    for line in (module.__doc__ or "").splitlines()[1:]:
        label, separator, rest = line.partition(":")
        if separator and label in SECTIONS:
            current = found.setdefault(label, [])
            line = rest  # noqa: PLW2901 - the label is not part of the text
        if line.strip():
            current.append(line.strip())
    return {label: " ".join(lines) for label, lines in found.items()}


def paragraph(label: str, text: str) -> str:
    """Return a labelled paragraph of Markdown."""
    text = re.sub(r"<(\w[\w ]*)>", r"`<\1>`", text)  # a placeholder would be taken for HTML
    return textwrap.fill(f"**{label}.** {text[:1].upper()}{text[1:]}", WIDTH)


def rights() -> str:
    """Return the table of what each API asks for."""
    rows = []
    for module in REGISTRY:
        name = api_name(module)
        for rule in RULES[module.API_KEY]:
            which = rule.which or "the cluster"
            rows.append(
                f"| {name} | {rule.operation.name} | {rule.resource_type.name} | {which} | {rule.refusal} |"
            )
            name = ""
        if not RULES[module.API_KEY]:
            rows.append(f"| {name} | | | for everybody | |")
    return RIGHTS + "\n".join(rows)


def document() -> str:
    """Return the whole document."""
    rows = []
    chapters = []
    for module in REGISTRY:
        served = getattr(module, "SERVED", module.VERSIONS)
        name = api_name(module)
        anchor = name.lower()
        rows.append(
            f"| {int(module.API_KEY)} | [{name}](#{anchor}) | {module.VERSIONS} | {served} |"
        )
        paragraphs = [f"## {name}"]
        for label, text in sections_of(module).items():
            paragraphs.append(paragraph(label, text))
        chapters.append("\n\n".join(paragraphs))
    return HEAD + "\n".join(rows) + "\n\n" + "\n\n".join([*chapters, rights()]) + "\n"


def main() -> int:
    """Write the document, or compare it with `--check`."""
    wanted = document()
    found = TARGET.read_text() if TARGET.exists() else ""
    if wanted == found:
        return 0
    if "--check" in sys.argv[1:]:
        difference = difflib.unified_diff(found.splitlines(), wanted.splitlines(), lineterm="")
        sys.stderr.write("\n".join(difference) + f"\n{TARGET.name} is out of date: make generate\n")
        return 1
    TARGET.write_text(wanted)
    return 0


if __name__ == "__main__":
    sys.exit(main())
