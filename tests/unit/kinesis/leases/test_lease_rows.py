"""The rows of leases in DynamoDB have the form that docs/reference/kinesis-leases.md documents."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from headrace.core.lease.checkpoint import Checkpoint
from headrace.core.lease.lease import HashRange, LeaseKey
from headrace.errors import ConfigError
from headrace.kinesis.leases.dynamodb_rows import ForeignRowError, item_of, lease_of
from headrace.kinesis.leases.sqlite import APPLICATION_ID

PAGE = (
    Path(__file__).resolve().parents[4] / "docs" / "reference" / "kinesis-leases.md"
).read_text()
ROW = json.loads(re.findall(r"```json\n(.*?)```", PAGE, re.DOTALL)[0])


def test_the_documented_row_is_read_and_written() -> None:
    lease = lease_of(ROW)
    assert item_of(lease) == ROW
    assert lease.key == LeaseKey("billing", "orders@1700000000", "shardId-000000000003")
    assert lease.checkpoint == Checkpoint(ROW["cp"]["S"], 4)
    assert lease.hash_range == HashRange(2**127, 2**128 - 1)
    assert (lease.epoch, lease.beat, lease.switches) == (12, 10443, 0)


def test_every_attribute_is_described() -> None:
    described = set(re.findall(r"^\| `(\w+)` \|", PAGE.partition("## Rows")[2], re.MULTILINE))
    assert set(ROW) <= described
    assert f"0x{APPLICATION_ID:X}" in PAGE


@pytest.mark.parametrize("name", ["v", "cp", "epoch", "beat"])
def test_a_row_without_a_required_attribute_is_foreign(name: str) -> None:
    with pytest.raises(ForeignRowError, match=f"it has no attribute '{name}'"):
        lease_of({key: value for key, value in ROW.items() if key != name})


@pytest.mark.parametrize(
    "change",
    [
        {"pk": {"S": "orders@1700000000"}},
        {"pk": {"S": "billing#"}},
        {"cp": {"N": "17"}},
        {"cp": {"S": "yesterday"}},
        {"epoch": {"S": "12"}},
        {"hash": {"S": "all"}},
        {"v": {"S": "one"}},
    ],
    ids=str,
)
def test_a_row_of_another_shape_is_foreign(change: dict[str, dict[str, str]]) -> None:
    with pytest.raises(ForeignRowError):
        lease_of({**ROW, **change})


def test_a_row_of_a_later_version_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"later version of Headrace \(v=2\). Upgrade Headrace"):
        lease_of({**ROW, "v": {"N": "2"}, "cp": {"M": {}}})
