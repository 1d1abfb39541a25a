"""Links between pages lead somewhere, and every page is reachable from docs/index.md."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
INDEX: Final = ROOT / "docs" / "index.md"
_CODE: Final = re.compile(r"^( *)```.*?^\1```$|`[^`\n]*`", re.DOTALL | re.MULTILINE)
_LINK: Final = re.compile(r"\]\(([^)\s]+)\)")
_HEADING: Final = re.compile(r"^#+ +(.*?)\s*$", re.MULTILINE)
_FENCED: Final = re.compile(r"^( *)```.*?^\1```$", re.DOTALL | re.MULTILINE)
_PAGE_NAME: Final = re.compile(r"(?<![\w/.])docs/[\w./-]+\.md")


def tracked_files(*suffixes: str) -> list[Path]:
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    paths = (ROOT / line for line in listed.stdout.splitlines())
    return [path for path in paths if path.suffix in suffixes and path.exists()]


def pages() -> list[Path]:
    """Return the Markdown files that people write or read: everything but the results of benchmarks."""
    return [path for path in tracked_files(".md") if "results" not in path.parts]


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub names them."""
    found: set[str] = set()
    for heading in _HEADING.findall(_FENCED.sub("", page.read_text())):
        text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower()
        name = re.sub(r"[^\w\- ]", "", text).replace(" ", "-")
        number = sum(other == name or other.startswith(f"{name}-") for other in found)
        found.add(name if name not in found else f"{name}-{number}")
    return found


def links(page: Path) -> Iterator[tuple[Path, str]]:
    """Yield the file and the anchor of each link from one page to a file of the repository."""
    for target in _LINK.findall(_CODE.sub("", page.read_text())):
        if not re.match(r"[a-z]+:", target):
            path, _, anchor = target.partition("#")
            yield (page.parent / path).resolve() if path else page, anchor


def test_every_link_leads_to_a_file_and_a_heading() -> None:
    broken = [
        f"{page.relative_to(ROOT)}: {target}#{anchor}"
        for page in pages()
        for target, anchor in links(page)
        if not target.exists()
        or (anchor and target.suffix == ".md" and anchor not in anchors(target))
    ]
    assert broken == []


def test_every_page_is_reachable_from_the_index() -> None:
    reached, waiting = {INDEX}, [INDEX]
    while waiting:
        for target, _ in links(waiting.pop()):
            if target.suffix == ".md" and target.is_relative_to(ROOT / "docs"):
                if target not in reached and target.exists():
                    waiting.append(target)
                reached.add(target)
    missing = [path for path in pages() if path.is_relative_to(INDEX.parent)]
    assert [str(path.relative_to(ROOT)) for path in missing if path not in reached] == []


def test_every_page_that_code_or_prose_names_exists() -> None:
    named = {
        (str(path.relative_to(ROOT)), page)
        for path in tracked_files(".py", ".md", ".toml", ".js")
        if "results" not in path.parts and path.name != "build_docs.py"
        for page in _PAGE_NAME.findall(path.read_text())
    }
    assert len(named) > 20
    assert [entry for entry in sorted(named) if not (ROOT / entry[1]).exists()] == []


def test_every_module_that_a_page_of_the_design_names_exists() -> None:
    modules = [f"/{path.relative_to(ROOT)}" for path in tracked_files(".py")]
    named = {
        (page.name, module)
        for page in (ROOT / "docs" / "design").rglob("*.md")
        for module in re.findall(r"`([\w/]+/\w+\.py)`", page.read_text())
    }
    assert len(named) > 50
    unknown = {
        entry for entry in named if not any(path.endswith(f"/{entry[1]}") for path in modules)
    }
    assert unknown == set()


def test_the_map_has_every_package() -> None:
    table = (ROOT / "docs" / "design" / "index.md").read_text()
    source = ROOT / "src" / "headrace"
    packages = {f"{path.parent.name}/" for path in source.glob("*/__init__.py")}
    packages |= {path.name for path in source.glob("*.py") if not path.name.startswith("__")}
    mapped = {
        name for line in table.splitlines() for name in re.findall(r"^\| `([\w/.]+)` \|", line)
    }
    assert {name for name in mapped if "/" not in name[:-1]} == packages


def test_every_package_that_a_page_of_the_design_names_exists() -> None:
    """A path without a module is below `src/headrace/`, or below the directory of the project."""
    named = {
        (page.name, package)
        for page in (ROOT / "docs" / "design").rglob("*.md")
        for package in re.findall(r"`([\w/]+)/`", page.read_text())
    }
    assert len(named) > 20
    directories = {
        parent for path in tracked_files(".py", ".txt", ".toml", ".md") for parent in path.parents
    }
    bases = (ROOT, ROOT / "src" / "headrace")
    unknown = [
        entry for entry in sorted(named) if not directories & {base / entry[1] for base in bases}
    ]
    assert unknown == []
