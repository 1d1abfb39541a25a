"""docs/guides/security.md: the worker, commands and fixtures of its section on programs log in and are authorized."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import headrace
from tests.docs.console import section
from tests.fixtures.certificates import make_certificates
from tests.fixtures.secured_headrace import SecuredHeadrace
from tests.fixtures.secured_kafka import PASSWORD

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "guides" / "security.md").read_text()
SECTION = section(PAGE, "How programs connect")
PROGRAMS = re.findall(r"```python\n# (\S+)\n(.*?)```", SECTION, re.DOTALL)
COMMANDS = re.findall(r"^\$ headrace (.*)$", SECTION, re.MULTILINE)
FURTHER = {"authorizer.class.name": "headrace", "super.users": "User:ANONYMOUS"}


def command(text: str) -> list[str]:
    return [sys.executable, "-m", "headrace.cli", *text.split()]


def test_the_worker_the_commands_and_the_fixtures_are_authorized(tmp_path: Path) -> None:
    assert [name for name, _ in PROGRAMS] == ["billing.py", "test_billing.py"]
    create, create_letters, run, create_redrive, dlq_list = COMMANDS
    server = SecuredHeadrace(tmp_path / "node", make_certificates(tmp_path), further=FURTHER)
    server.start()
    open_door = server.bootstraps["PLAINTEXT"]
    for name, text in PROGRAMS:
        written = text.replace("broker:9095", server.bootstraps["SASL_SSL"])
        (tmp_path / name).write_text(written)
    (tmp_path / "alice.properties").write_text(
        f"bootstrap.servers={server.bootstraps['SASL_SSL']}\nsecurity.protocol=SASL_SSL\n"
        f"ssl.ca.location=authority.pem\nsasl.mechanism=SCRAM-SHA-512\nsasl.username=alice\n"
        "sasl.password=${env:KAFKA_PASSWORD}\n"
    )
    environment = {**os.environ, "KAFKA_PASSWORD": PASSWORD}

    def done(text: str, **further: str) -> str:
        finished = subprocess.run(
            command(text), cwd=tmp_path, env={**environment, **further}, check=False,
            capture_output=True, text=True, timeout=60,
        )  # fmt: skip
        assert finished.returncode == 0, finished.stderr
        return finished.stdout

    try:
        with headrace.Admin(open_door) as admin:
            admin.create_topic("orders", 1)
        worker = subprocess.Popen(
            command(run), cwd=tmp_path, env=environment, stderr=subprocess.PIPE, text=True
        )
        _, output = worker.communicate(timeout=60)  # it has no permissions yet
        assert worker.returncode == 2
        assert "AUTHORIZATION_FAILED" in output
        assert PASSWORD not in output
        for text in (create, create_letters, create_redrive):
            done(text, HEADRACE_BOOTSTRAP=open_door)
        with headrace.Producer(open_door) as producer:
            producer.send("orders", b"-1").result(10)
        with subprocess.Popen(command(run), cwd=tmp_path, env=environment) as handling:
            try:
                wait_for_letter(open_door)
            finally:
                handling.terminate()
        assert "dlq.orders" in done(dlq_list)
        tests = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_billing.py"],
            cwd=tmp_path, env=environment, check=False, capture_output=True, text=True, timeout=90,
        )  # fmt: skip
        assert tests.returncode == 0, tests.stdout
    finally:
        server.stop()


def wait_for_letter(address: str) -> None:
    with headrace.Consumer(
        address, group="watcher", auto_offset_reset="earliest", allow_auto_create_topics=False
    ) as consumer:
        consumer.subscribe(["dlq.orders"])
        for _ in range(60):
            if consumer.poll(1):
                return
    raise AssertionError("the dead letter did not arrive")
