"""No file is mapped into memory: one that shrinks under a mapping ends the process with SIGBUS."""

from __future__ import annotations

import ast
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[3] / "src"


def test_no_module_maps_files_into_memory() -> None:
    paths = list(SOURCE.rglob("*.py"))
    assert len(paths) > 100
    for path in paths:
        text = path.read_text()
        if "mmap" not in text:
            continue  # to be parsed costs a hundred times more
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Import):
                imported = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                imported = [node.module or ""]
            else:
                continue
            assert "mmap" not in imported, f"{path}:{node.lineno}"
