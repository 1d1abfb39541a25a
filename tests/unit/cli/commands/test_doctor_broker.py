"""`headrace doctor broker`: errors of a configuration before a broker starts, with their remedies."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from headrace.cli import main
from tests.fixtures.certificates import Certificates, make_certificates


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("certificates"))


def doctor(*arguments: object) -> tuple[int, list[dict[str, Any]]]:
    done = CliRunner().invoke(main, ["doctor", "broker", "--format", "json", *map(str, arguments)])
    return done.exit_code, json.loads(done.stdout)


@pytest.fixture
def properties(certificates: Certificates, tmp_path: Path) -> Path:
    path = tmp_path / "server.properties"
    path.write_text(
        f"""
listeners=SSL://127.0.0.1:9093
log.dirs={tmp_path / "data"}
ssl.keystore.location={certificates.server.pem}
ssl.client.auth=required
ssl.truststore.location={certificates.authority}
headrace.ssl.crl.location={tmp_path / "list.crl"}
"""
    )
    path.chmod(0o600)
    certificates.signer.revoke(tmp_path / "list.crl")
    return path


def test_all_is_well(properties: Path, tmp_path: Path) -> None:
    code, findings = doctor("--config-file", properties)
    assert (code, [each["state"] for each in findings]) == (0, ["ok", "absent", "ok"])
    assert str(tmp_path / "list.crl") in findings[2]["found"]
    assert not (tmp_path / "data").exists(), "it changes nothing"


def test_a_directory_that_is_too_wide(
    properties: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = tmp_path / "data"
    data.mkdir(0o755)
    monkeypatch.setattr("headrace.storage.permissions._OTHERS_PASS", 0o100)
    code, findings = doctor("--config-file", properties)
    assert code == 1
    assert findings[1]["state"] == "fault"
    assert findings[1]["remedy"].startswith(f"chmod 700 {data}")
    data.chmod(0o700)
    assert doctor("--config-file", properties)[0] == 0


def test_a_list_that_has_expired_and_a_file_of_secrets_for_everybody(
    properties: Path, certificates: Certificates, tmp_path: Path
) -> None:
    certificates.signer.revoke(tmp_path / "list.crl", days=(-9, -1))
    with properties.open("a") as file:
        file.write("ssl.key.password=secret\n")
    properties.chmod(0o644)
    code, findings = doctor("--config-file", properties)
    assert code == 1
    assert "secret readable by everybody" in findings[0]["found"]
    assert findings[0]["remedy"] == "chmod o-r"
    assert "crl expired" in findings[-1]["found"]
    assert "replace the list with a new one" in findings[-1]["remedy"]


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("listeners=PLAINTEXT://:9092", "neither encrypted nor authenticated"),
        ("ssl.client.auth=perhaps", "perhaps"),
        ("headrace.ssl.crl.location=/does/not/exist", "cannot read /does/not/exist"),
        ("ssl.keystore.location=/does/not/exist", "cannot read /does/not/exist"),
    ],
)
def test_a_setting_that_cannot_be(properties: Path, setting: str, said: str) -> None:
    code, findings = doctor("--config-file", properties, "--config", setting)
    assert code == 1
    assert said in findings[-1]["found"]
