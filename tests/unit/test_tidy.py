"""Rules of the project that no linter knows. Each failure names the file, the line and the rule."""

from __future__ import annotations

import ast
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tools import check_prose

ROOT = Path(__file__).resolve().parents[2]
GENERATED = "src/headrace/protocol/messages/"
LINE_LIMIT = 120
FILE_LINES_LIMIT = {"src": 500, "tests": 1000, "tools": 600, "benchmarks": 800}
FUNCTION_LINES_LIMIT = 60
FILE_BYTES_LIMIT = 400_000


def tracked_files(*suffixes: str) -> list[Path]:
    listing = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    paths = [ROOT / name for name in listing.stdout.splitlines()]
    return [path for path in paths if path.is_file() and (not suffixes or path.suffix in suffixes)]


def relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def written_python() -> list[Path]:
    return [path for path in tracked_files(".py") if not relative(path).startswith(GENERATED)]


def problems(found: Iterator[str]) -> None:
    listing = sorted(found)
    assert not listing, "\n" + "\n".join(listing)


def test_files_stay_small() -> None:
    def found() -> Iterator[str]:
        for path in written_python():
            limit = FILE_LINES_LIMIT.get(relative(path).split("/")[0])
            lines = len(path.read_text().splitlines())
            if limit and lines > limit:
                yield f"{relative(path)}: {lines} lines, the limit is {limit}: divide it by thought"

    problems(found())


def test_functions_stay_one_thought() -> None:
    def found() -> Iterator[str]:
        for path in written_python():
            if not relative(path).startswith("src/"):
                continue
            for node in ast.walk(ast.parse(path.read_text())):
                if (
                    isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
                    and node.end_lineno is not None
                ):
                    length = node.end_lineno - node.lineno + 1
                    if length > FUNCTION_LINES_LIMIT:
                        where = f"{relative(path)}:{node.lineno}: {node.name}"
                        yield f"{where} has {length} lines, the limit is {FUNCTION_LINES_LIMIT}"

    problems(found())


def test_no_line_exceeds_the_limit() -> None:
    def found() -> Iterator[str]:
        for path in written_python():
            for number, line in enumerate(path.read_text().splitlines(), 1):
                if len(line) > LINE_LIMIT:
                    yield f"{relative(path)}:{number}: {len(line)} characters, the limit is {LINE_LIMIT}"

    problems(found())


def test_every_suppression_has_a_reason() -> None:
    suppression = re.compile(
        r"#\s*(noqa(: ?[A-Z0-9, ]+)?|type: ignore(\[[a-z-, ]+\])?)(?P<rest>.*)$"
    )

    def found() -> Iterator[str]:
        for path in written_python():
            if path.name == "test_tidy.py":
                continue
            for number, line in enumerate(path.read_text().splitlines(), 1):
                match = suppression.search(line)
                reason = match["rest"].strip(" -#") if match else "none needed"
                if len(reason) < 8 or re.search(r"\b(as|see) (above|below)\b|[l]ikewise", reason):
                    yield f"{relative(path)}:{number}: a suppression without a reason behind it"

    problems(found())


def test_prose_follows_the_style_guide() -> None:
    problems(f"{problem} (CONTRIBUTING.md, Prose)" for problem in check_prose.problems())


def test_nothing_is_left_for_later() -> None:
    marker = re.compile(r"\b(TO" + r"DO|FIX" + r"ME|XX" + r"X|HA" + r"CK)\b")

    def found() -> Iterator[str]:
        for path in tracked_files(".py", ".md", ".toml"):
            for number, line in enumerate(path.read_text().splitlines(), 1):
                if marker.search(line):
                    yield f"{relative(path)}:{number}: do it, or open an issue"

    problems(found())


def test_events_of_the_journal_have_names_that_can_be_searched_for() -> None:
    def found() -> Iterator[str]:
        for path in written_python():
            text = path.read_text()
            if not relative(path).startswith("src/") or not re.search("journal|client_log", text):
                continue
            for node in ast.walk(ast.parse(text)):
                if (
                    isinstance(node, ast.Call)
                    and isinstance(node.func, ast.Attribute)
                    and node.func.attr in {"info", "warning", "error"}
                    and ast.unparse(node.func.value).endswith(("journal", "client_log"))
                    and node.args
                    and isinstance(node.args[0], ast.Constant)
                    and not re.fullmatch(r"[a-z]+(_[a-z]+)*", str(node.args[0].value))
                ):
                    yield f"{relative(path)}:{node.lineno}: {node.args[0].value!r} is not snake_case"

    problems(found())


def test_no_path_of_a_machine_and_no_large_file() -> None:
    machine_path = re.compile(r"(?<![\w.])/(work|root|home/\w+|Users/\w+)/")

    def found() -> Iterator[str]:
        for path in tracked_files():
            if path.stat().st_size > FILE_BYTES_LIMIT:
                yield f"{relative(path)}: {path.stat().st_size} bytes; large data does not belong in the repository"
            if path.suffix in {".py", ".md", ".toml", ".json", ".js", ".txt", ".xml", ""}:
                for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1):
                    if machine_path.search(line):
                        yield f"{relative(path)}:{number}: a path of one machine"

    problems(found())


def test_generated_files_say_so_everywhere() -> None:
    mark = re.compile(
        r"(?:#|<!--) @generated by (tools/\w+\.py)(?: from \S+)?; do not edit(?: -->)?"
    )
    attributes = (ROOT / ".gitattributes").read_text().splitlines()
    listed = [line.split()[0] for line in attributes if line.endswith(" linguist-generated")]
    contributing = (ROOT / "CONTRIBUTING.md").read_text()

    def found() -> Iterator[str]:
        for path in tracked_files(".py", ".md", ".pyi"):
            first = path.read_text().partition("\n")[0]
            marked = mark.fullmatch(first)
            ignored = any(path.relative_to(ROOT).match(pattern) for pattern in listed)
            if marked and not (ROOT / marked[1]).exists():
                yield f"{relative(path)}: there is no {marked[1]}"
            if marked and not ignored:
                yield f"{relative(path)}: .gitattributes does not list it"
            if marked and marked[1] not in contributing:
                yield f"{relative(path)}: CONTRIBUTING.md does not name {marked[1]}"
            if ignored and not marked and not relative(path).startswith("benchmarks/results/"):
                yield f"{relative(path)}: its first line does not say that it is generated"

    problems(found())


def test_every_document_has_one_title() -> None:
    def found() -> Iterator[str]:
        for path in tracked_files(".md"):
            text = re.sub(r"```.*?```", "", path.read_text(), flags=re.DOTALL)
            titles = [line for line in text.splitlines() if line.startswith("# ")]
            if len(titles) != 1:
                yield f"{relative(path)}: {len(titles)} titles, one is wanted"

    problems(found())


@pytest.mark.parametrize(
    "package",
    sorted(p.name for p in (ROOT / "src/headrace").iterdir() if (p / "__init__.py").exists()),
)
def test_the_file_map_names_every_package(package: str) -> None:
    assert f"{package}/" in (ROOT / "docs/design/index.md").read_text(), (
        f"docs/design/index.md does not say what {package}/ is"
    )
