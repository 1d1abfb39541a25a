"""`headrace topic create --storage NAME`."""

from __future__ import annotations

from click.testing import CliRunner

from headrace.cli import main
from headrace.clients.admin.blocking import Admin
from headrace.embedded.broker import Broker


def test_a_topic_is_created_in_a_storage_by_its_name() -> None:
    with Broker() as broker, Admin(broker) as admin:
        address = broker.listen()

        def create(*arguments: str):
            return CliRunner().invoke(main, ["topic", "create", *arguments, "-b", address])

        found = create("quick", "--storage", "array", "-c", "retention.ms=5000")
        assert found.exit_code == 0, found.output
        configs = admin.configs("quick")
        assert configs["headrace.storage"].value == "array"
        assert configs["retention.ms"].value == "5000"
        refused = create("lost", "--storage", "nobody's")
        assert refused.exit_code == 1
        assert "no storage is called" in refused.output
