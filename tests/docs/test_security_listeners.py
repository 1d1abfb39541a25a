"""The settings of docs/guides/listeners.md are accepted, and its certificate works."""

from __future__ import annotations

import re
import shutil
import socket
import ssl
import subprocess
from pathlib import Path

import pytest

from headrace import Broker
from headrace.config.broker import parse_broker_config
from headrace.config.properties_file import parse_properties
from headrace.server.listen import chosen_listeners
from headrace.server.tls.context import ServerTls
from tests.fixtures.certificates import make_certificates
from tests.unit.server.fakes import RecordingJournal

PAGE = (Path(__file__).parents[2] / "docs" / "guides" / "listeners.md").read_text()


def block(kind: str) -> str:
    (found,) = re.findall(rf"```{kind}\n(.*?)```", PAGE, flags=re.DOTALL)
    return str(found)


def test_the_settings_make_the_listeners_of_the_page(tmp_path: Path) -> None:
    certificates = make_certificates(tmp_path)
    text = block("properties").replace("/etc/headrace/server.pem", str(certificates.server.pem))
    text = text.replace("/etc/headrace/clients.pem", str(certificates.authority))
    config = parse_broker_config(parse_properties(text, "listeners.md"))
    inner, outer = chosen_listeners([], config, insecure=False)
    assert (inner.name, outer.name) == ("INTERNAL", "EXTERNAL")
    tls = ServerTls(outer.name, config.for_listener(outer.name), RecordingJournal())
    assert tls.context.verify_mode == ssl.CERT_REQUIRED
    assert tls.mapping.name_of("CN=some,OU=ServiceUsers,O=Example") == "some"


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs the openssl command")
def test_the_trial_certificate_works(tmp_path: Path) -> None:
    command = block("shell").partition("headrace serve")[0]
    subprocess.run(command, shell=True, check=True, cwd=tmp_path, capture_output=True)
    configs = {
        "ssl.certificate.location": str(tmp_path / "server.crt"),
        "ssl.key.location": str(tmp_path / "server.key"),
    }
    with Broker(configs=configs) as broker:
        host, _, port = broker.listen("SSL://127.0.0.1:0").rpartition(":")
        context = ssl.create_default_context(cafile=str(tmp_path / "server.crt"))
        with (
            socket.create_connection((host, int(port)), 10) as plain,
            context.wrap_socket(plain, server_hostname="localhost") as sock,
        ):
            sock.sendall(bytes.fromhex("0000000a00120000000000010000"))  # ApiVersions 0
            assert sock.recv(4)
