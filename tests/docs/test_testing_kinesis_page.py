"""docs/guides/testing-kinesis.md is right: its files form a project whose tests pass."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from headrace.testing.kinesis import Limits, faults

pytest_plugins = "pytester"

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "guides" / "testing-kinesis.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)
FAULTS = Path(str(faults.__file__)).read_text()
FILES = {block.split("\n", 1)[0].removeprefix("# "): block for block in BLOCKS}


def test_every_block_names_its_own_file() -> None:
    assert len(FILES) == len(BLOCKS)
    assert all(name.endswith(".py") for name in FILES)


def test_the_tests_of_the_page_pass(pytester: pytest.Pytester) -> None:
    for name, text in FILES.items():
        (pytester.path / name).write_text(text)
    result = pytester.runpytest_subprocess("-p", "no:cacheprovider", timeout=200)
    wanted = sum(text.count("\ndef test_") for text in FILES.values())
    result.assert_outcomes(passed=wanted)


def test_the_page_names_the_fixtures_of_the_plugin() -> None:
    plugin = vars(__import__("headrace.testing.plugin", fromlist=["plugin"]))
    fixtures = set(re.findall(r"^\| `(headrace_\w+)`", PAGE, flags=re.MULTILINE))
    assert fixtures == {"headrace_aws", "headrace_kinesis", "headrace_stream"}
    assert fixtures <= set(plugin)


def test_the_page_has_the_default_limits() -> None:
    limits = Limits()
    mib = 1 << 20
    assert (
        f"{limits.reads_per_s} calls and {limits.read_bytes_per_s // mib} MiB in any second" in PAGE
    )
    assert f"{limits.get_records:,} records and {limits.get_bytes // mib} MiB a call" in PAGE
    assert (
        f"{limits.put_records_per_s:,} records and {limits.put_bytes_per_s // mib} MiB in any"
        in PAGE
    )
    assert f"{limits.put_request_records} records, {limits.put_request_bytes // mib} MiB" in PAGE
    assert limits.iterator_ttl_ms == limits.token_ttl_ms == limits.subscription_ms == 300_000


def test_the_page_names_every_fault() -> None:
    actions = re.findall(r"^def ([a-z]\w*)\(", FAULTS, flags=re.MULTILINE)
    assert len(actions) == 6
    assert all(f"| `{name}(" in PAGE for name in actions)
