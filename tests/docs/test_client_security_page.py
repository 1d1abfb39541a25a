"""The programs of docs/guides/client-security.md run against a broker that requires TLS and SASL."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import headrace
from tests.fixtures.certificates import make_certificates
from tests.fixtures.secured_headrace import SecuredHeadrace
from tests.fixtures.secured_kafka import PASSWORD

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "guides" / "client-security.md").read_text()
PROGRAMS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
ADDRESS = re.compile(r"broker:\d+")
LISTENERS = {"broker:9093": "SSL", "broker:9094": "MUTUAL", "broker:9095": "SASL_SSL"}


def test_the_programs_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    server = SecuredHeadrace(tmp_path / "node", make_certificates(tmp_path))
    server.start()
    try:
        with headrace.Admin(server.bootstraps["PLAINTEXT"]) as admin:
            admin.create_topic("greetings", 1)
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("KAFKA_PASSWORD", PASSWORD)

        async def ask_issuer() -> str:
            return server.token()

        assert len(PROGRAMS) == 5
        for written in PROGRAMS:
            program = ADDRESS.sub(lambda found: server.bootstraps[LISTENERS[found[0]]], written)
            exec(
                compile(program, "docs/guides/client-security.md", "exec"),
                {"ask_issuer": ask_issuer},
            )
    finally:
        server.stop()
    assert capsys.readouterr().out.splitlines() == [
        "['greetings']", "['greetings']", "b'hello'", "['greetings']",
    ]  # fmt: skip
