"""quota alter and describe, as a user types them."""

from __future__ import annotations

from tests.conformance.cli.conftest import Commands
from tests.conformance.clients.observer import wait_until


def test_quotas_are_set_shown_and_removed(headrace: Commands) -> None:
    whose = ("--client-id", "from-the-command", "--user", "<default>")
    both = {"client-id": "from-the-command", "user": None}

    def known() -> list[object]:
        return list(headrace.json("quota", "describe", *whose))

    headrace.run("quota", "alter", *whose, "-s", "producer_byte_rate=5", "--dry-run")
    assert known() == []
    headrace.run(
        "quota", "alter", *whose, "-s", "producer_byte_rate=50000", "-s", "request_percentage=12.5"
    )
    quotas = {"producer_byte_rate": 50_000, "request_percentage": 12.5}
    wait_until("the quotas", lambda: known() == [{"entity": both, "quotas": quotas}])
    table = headrace.lines("quota", "describe", "--client-id", "from-the-command")
    assert table[0].split() == ["ENTITY", "QUOTA", "VALUE"]
    assert [line.split()[-2:] for line in table[1:]] == [
        ["producer_byte_rate", "50000"],
        ["request_percentage", "12.5"],
    ]
    assert headrace.json("quota", "describe", "-c", "from-the-command", "--strict") == []
    refused = headrace.run("quota", "alter", *whose, "-s", "producer_byte_rate=0", code=1)
    assert b"INVALID_REQUEST" in refused.stderr
    removed = ("--unset", "producer_byte_rate", "--unset", "request_percentage")
    headrace.run("quota", "alter", *whose, *removed)
    wait_until("none", lambda: known() == [])
